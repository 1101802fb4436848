#!/usr/bin/env bash
# What docs/style.md promises and a script can see. Prints every breach and ends with 1 where there is one.
#
#     tests/style.sh [build folder]       with it: every test file is a test there
set -eu
cd "$(dirname "$0")/.."
breaches=0
breach() {
    echo "$*"
    breaches=$((breaches + 1))
}
# From below to above: a file includes of its own folder and of those before it.
folders=(base traces kernels models estimator engine bench cli)
kinds=(-name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cmake' -o -name '*.sh'
    -o -name '*.py' -o -name '*.md' -o -name CMakeLists.txt)
mapfile -t files < <(find "${folders[@]}" tests tools docs "${kinds[@]}")
files+=(Makefile CMakeLists.txt README.md)

while read -r lines name; do
    [ "$name" = total ] || [ "$lines" -le 1200 ] || breach "$name: $lines lines; files end at 1200"
done < <(wc -l "${files[@]}")

while read -r line; do breach "$line: unfinished"; done < <(grep -nwE 'TOD[O]|FIXM[E]|XX[X]' "${files[@]}")

above=("${folders[@]}")
for folder in "${folders[@]}"; do
    above=("${above[@]:1}")
    while read -r line; do breach "$line: $folder/ lies below"; done < <(
        find "$folder" "${kinds[@]}" | xargs grep -nE "^#include \"($(IFS='|'; echo "${above[*]}"))/"
    )
done

# The targets of links within the documentation.
while IFS=: read -r page link; do
    [ -e "$(dirname "$page")/$link" ] || breach "$page: links to $link, which does not exist"
done < <(grep -oE '\]\([^):#]+[)#]' README.md docs/*.md | sed 's/\](//; s/[)#]$//')

if [ $# -gt 0 ]; then
    tests=$(ctest -N --test-dir "$1" | sed -n 's/^ *Test *#[0-9]*: //p')
    for file in tests/test_*.c tests/*/test_*.c; do
        [ -e "$file" ] || continue
        # tests/test_x.c is test_x, tests/folder/test_x.c is folder_x. A build may lack all of a folder: without nvcc, say.
        name=$(echo "$file" | sed -E 's|^tests/||; s|/test_|_|; s|\.c$||')
        grep -q "^${name%%_*}_" <<<"$tests" || continue
        grep -qx "$name" <<<"$tests" || breach "$file: $1 has no test \"$name\""
    done
fi
[ $breaches -eq 0 ] || exit 1
