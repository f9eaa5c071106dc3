# What blend prints: six ratios; errors fall with each, are 0 at ratio 1, and are smaller than those of tokens chosen blindly
# in between.
$1 ~ /^[01]\.[0-9]+$/ {
  rows++
  if (rows > 1 && ($3 >= last_error || $2 <= last_tokens)) bad = "does not fall at " $1
  if ($1 > 0 && $1 < 1 && $3 >= $5) bad = "is no better than chance at " $1
  if ($1 == 1 && ($3 != 0 || $4 != 0 || $5 != 0 || $6 != 0)) bad = "is not 0 at ratio 1"
  last_error = $3
  last_tokens = $2
}
END {
  if (rows != 6) bad = "has " rows + 0 " ratios, expected 6"
  if (bad != "") {
    print "the error " bad
    exit 1
  }
}
