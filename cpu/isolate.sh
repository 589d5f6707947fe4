#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# isolate.sh LD OBJCOPY SYMBOL OUTPUT OBJECT...: joins objects into one whose only global symbol is SYMBOL.
set -e
ld=$1 objcopy=$2 symbol=$3 output=$4
shift 4
"$ld" -r --force-group-allocation -o "$output.joined" "$@"
"$objcopy" --keep-global-symbol="$symbol" "$output.joined" "$output"
rm -f "$output.joined"
