# Sourced by check_cmake.sh and check_python.sh: one step after the other, counted. $work is a folder for logs.

passed=0 failed=0
# check WHAT COMMAND...: runs it; prints "ok WHAT (seconds)", or its output.
check() {
  local what=$1 started=$SECONDS
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "ok $what ($((SECONDS - started)) s)"
    passed=$((passed + 1))
  else
    echo "FAILED $what: exit status $?"
    tail -n 60 "$work/log" | sed 's/^/    /'
    failed=$((failed + 1))
    return 1
  fi
}
