# What blend prints: five ratios behind a hit of the system's 48 tokens. Errors fall with each, are 0 at ratio 1, and are smaller
# than those of tokens chosen blindly in between. Two checks take fewer rows than the first alone. Times are the machine's.
$1 ~ /^[01]\.[0-9]+$/ {
  rows++
  if ($2 != 48) bad = "is behind a hit of " $2 " at " $1
  if (rows > 1 && ($4 >= last_error || $5 >= last_mean || $3 <= last_rows)) bad = "does not fall at " $1
  if ($1 > 0 && $1 < 1 && $4 >= $7) bad = "is no better than chance at " $1
  if ($1 == 1 && ($4 != 0 || $5 != 0 || $6 != 0 || $7 != 0)) bad = "is not 0 at ratio 1"
  expected["0.00"] = 232; expected["0.05"] = 272; expected["0.16"] = 357; expected["0.50"] = 632; expected["1.00"] = 1032
  if ($3 != expected[$1]) bad = "is of " $3 " rows at " $1
  last_error = $4
  last_mean = $5
  last_rows = $3
  errors[$1] = $4
}
$1 == "0.50-0.16" {
  checks = 1
  if ($3 != 467 || $4 >= errors["0.05"] || $4 <= errors["1.00"]) bad = "of two checks is " $4 " with " $3 " rows"
}
END {
  if (rows != 5) bad = "has " rows + 0 " ratios, expected 5"
  if (!checks) bad = "of two checks is missing"
  if (bad != "") {
    print "the error " bad
    exit 1
  }
}
