#!/bin/sh
# check_ptx.sh TABLE PTX...: instructions that the kernels' PTX must and must not contain. A line of the table is
#     must NAME REGEX     NAME.ptx has it
#     never NAME REGEX    NAME.ptx does not have it; NAME may be *
# Comments are no instructions: lines that begin with // are left out.
set -eu
table=$1
shift
bad=0 checks=0
while read -r rule name regex; do
    case $rule in '' | '#'*) continue ;; esac
    met=0
    for ptx in "$@"; do
        case "$name" in '*') ;; *) [ "$(basename "$ptx" .ptx)" = "$name" ] || continue ;; esac
        met=1 checks=$((checks + 1))
        count=$(sed 's|//.*||' "$ptx" | grep -cE -e "$regex" || true)
        case $rule in
        must) [ "$count" -gt 0 ] || { echo "$ptx: no $regex"; bad=1; } ;;
        never) [ "$count" -eq 0 ] || { echo "$ptx: $count lines with $regex"; bad=1; } ;;
        *) echo "$table: no rule \"$rule\"" && bad=1 ;;
        esac
    done
    [ $met = 1 ] || { echo "$table: no $name.ptx was built"; bad=1; }
done <"$table"
echo "$checks checks"
[ $checks -gt 0 ] && exit $bad
