#!/usr/bin/env bash
# symbols_test.sh LIBRARY SYMBOLS HEADER: the library shows exactly the symbols of the committed list, with their
# versions, and the header declares exactly those. A change of the list is a change of the ABI: see docs/c_interface.md.
set -u
library=$1 symbols=$2 header=$3
diff "$symbols" <(nm -D --defined-only "$library" | awk '$3 ~ /@/ { print $3 }' | grep -v '^KVBLOCKS_' | LC_ALL=C sort) ||
  { echo "$library and $symbols differ"; exit 1; }
diff <(sed 's/@.*//' "$symbols") <(grep -A2 '^KVB_API' "$header" | grep -o 'kvb_[a-z_]*(' | tr -d '(' | LC_ALL=C sort) ||
  { echo "$header and $symbols differ"; exit 1; }
others=$(nm -D --defined-only "$library" | awk '$3 !~ /^(kvb_|KVBLOCKS_)/ { print $3 }')
[ -z "$others" ] || { printf 'the library shows, too:\n%s\n' "$others"; exit 1; }
