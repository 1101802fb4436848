#!/usr/bin/env bash
# quiet.sh PROGRAM PYTHON MODELS: the numbers that want an idle machine, in about twenty-five minutes: the limits, the engine and the
# peers on one thread and on all cores, one process against two. What is kept goes to bench/results.
set -eu
cd "$(dirname "$0")/.."
program=$1 python=$2 models=$3
cores=$(nproc) results=bench/results
mkdir -p $results
name=$("$program" bench limits --repetitions 1 --threads 1 | sed -n 's/^machine: //p')
part() { echo; echo "== $1 (load $(cut -d' ' -f1 /proc/loadavg))"; }

part "limits"
"$program" bench limits
part "engine, 1 and $cores threads"
"$program" bench engine "$models/0.6b" --threads 1 -o "$results/$name-engine-1.csv"
"$program" bench engine "$models/0.6b" --threads "$cores" -o "$results/$name-engine-$cores.csv"
part "peers, 1 and $cores threads"
"$python" bench/peers/compare.py --tvgpu "$program" --models "$models" --threads "1,$cores" --csv "$results/$name-peers.csv"

part "two processes of one run against one, one thread each"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(compare -N 128 -n 128 -R 8 --batch 32 --order shuffled --backend-b math --threads 1 -q)
begin=$(date +%s.%N)
"$program" "${options[@]}" -o "$work/one" >"$work/one.txt"
middle=$(date +%s.%N)
"$program" "${options[@]}" -o "$work/two" --shard 2/2 &
"$program" "${options[@]}" -o "$work/two" --shard 1/2 >"$work/two.txt"
wait
end=$(date +%s.%N)
cmp "$work/one.txt" "$work/two.txt" && echo "the same report"
echo "$begin $middle $end" | awk '{printf "one process %.1f s, two %.1f s: %.2f times as fast\n", $2 - $1, $3 - $2, ($2 - $1) / ($3 - $2)}'
