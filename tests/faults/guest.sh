# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Faults of another trainer's ranks on this machine: kill -9 or SIGSTOP of a rank, kill -9 of its stand-in, of a node's agent, of all of a
# node's processes, or of the job controller; a resize. At any time, during switches and recoveries, and two at once. Trainers: `command`,
# the example that starts again from its own checkpoint; `torch`, the loop of PyTorch that does not start again, and `divided`, the same
# with a part of the state in each rank (a Python with torch: $HSPMD_TORCH_PYTHON, or python3).
. "$top/tests/faults/processes.sh"
. "$top/tests/faults/switches.sh"

unset "${!SLURM@}"
folder=$(mktemp -d "${TMPDIR:-/tmp}/hspmd-faults.XXXXXX")
export HSPMD_CONTACTS=$folder/contacts PYTHONDONTWRITEBYTECODE=1
metrics=$folder/o/metrics.jsonl log=$folder/o/hspmd.log
run='' node_prefix=local-
trap 'end_processes; [[ -n ${HSPMD_KEEP-} ]] || rm -rf "$folder"' EXIT
trap 'exit 143' TERM HUP INT
cd "$folder" || exit 1

if [[ $guest != command ]]; then
	declare -A script=([torch]=elastic.py [divided]=fsdp2.py)
	export PYTHONPATH=$top/contrib/python HSPMD_LIBRARY=$build/.libs/libhspmd.so.0
	# All ranks save often, so that even a loss of all of them costs little.
	train=("${HSPMD_TORCH_PYTHON:-python3}" "$top/contrib/examples/torch/${script[$guest]}" --steps 1000000 --width 8 --length 4 --batch 12
		--save-s 3)
	pace=0.02 tolerance=1e-5
else
	# Not a shell script that would start the real one.
	train=("$(python3 -c 'import sys; print(sys.executable)')" "$top/contrib/examples/command/train.py" --steps 1000000
		--per-rank '{12/world}')
	pace=0.05 tolerance=0
fi

start() {
	hspmd run --local "$nodes" --output o --step-timeout "$deadline" --notice TERM:5 -- "${train[@]}" --step-s "$pace" >>run.log 2>&1 &
	run=$!
}

# Ranks count as well.
processes() {
	local pid
	for pid in $(pgrep -x hspmd; pgrep -x lt-hspmd; pgrep -x 'python[0-9.]*'); do
		! grep -qzF "HSPMD_CONTACTS=$folder/" "/proc/$pid/environ" 2>/dev/null || echo "$pid"
	done
}

controller() {
	jq .pid o/contact.json 2>/dev/null
}

stand_ins() { # NODE-NUMBER
	local pid
	for pid in $(agent "$1"); do
		pgrep -P "$pid"
	done
}

workers() { # NODE-NUMBER: its ranks
	local pid
	for pid in $(stand_ins "$1"); do
		pgrep -P "$pid"
	done
}

end_run() {
	local status=0
	kill -TERM "$run"
	wait "$run" || status=$?
	# 1: a rank did not end in time, on a busy machine.
	((status == 1 || status == 85)) && tail -n 1 run.log | grep -q 'stopped by SIGTERM' ||
		{ echo "the run ended with status $status"; return 1; }
	wait_for 60 "all processes to end" none_left || { echo "processes are left: $(processes)"; return 1; }
}

# The same by one rank, until it has made as many steps. It is the same run for all seeds, and goes on where an earlier one has stopped it.
undisturbed=${HSPMD_UNDISTURBED:+$HSPMD_UNDISTURBED/$guest}
undisturbed=${undisturbed:-$folder/alone}

as_undisturbed() { # METRICS
	local last
	last=$(steps_of "$1" | sort -n | sed -n '$s/ .*//p')
	has_made "$last" || run_undisturbed "$last" || return 1
	jq -c --argjson last "$last" 'select(has("loss") and .step <= $last)' "$undisturbed/metrics.jsonl" >alone.jsonl
	"$top/tests/compare-losses" --tolerance "$tolerance" "$1" alone.jsonl
}

run_undisturbed() { # STEP
	local pid goes_on=()
	[[ ! -e $undisturbed/metrics.jsonl ]] || goes_on=(--resume)
	hspmd run --local 1 --output "$undisturbed" "${goes_on[@]}" -- "${train[@]}" --step-s 0 >alone.log 2>&1 &
	pid=$!
	wait_for 1800 "$1 steps without faults" has_made "$1" || { tail alone.log; return 1; }
	kill -TERM "$pid"
	wait "$pid" || true
}

has_made() { # STEP
	[[ -e $undisturbed/metrics.jsonl && $(steps_of "$undisturbed/metrics.jsonl" | sed -n '$s/ .*//p') -ge $1 ]]
}

# ---- faults

hurt() {
	draw 15
	local which=$drawn node
	draw "$nodes"
	node=$drawn
	case $which in
	0 | 1 | 2 | 3 | 4) signal KILL "rank of n$node" $(workers "$node") ;;
	5 | 6) signal KILL "stand-in of n$node" $(stand_ins "$node") ;;
	7 | 8) signal KILL "agent of n$node" $(agent "$node") ;;
	9 | 10 | 11) signal KILL "node n$node" $(agent "$node") $(stand_ins "$node") $(workers "$node") ;;
	12 | 13) signal STOP "rank of n$node" $(workers "$node") ;;
	14) [[ $(controller) == "$run" ]] || signal KILL controller $(controller) ;;
	esac
}

one_fault() {
	draw 20
	case $drawn in
	0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9) instant 6; hurt; perhaps_another ;;
	10 | 11)
		instant 6
		say "a resize"
		resize
		wait_for 120 "the resize to end" gone "$resizing" || { show; exit 1; }
		;;
	12 | 13 | 14 | 15) in_a_switch ;;
	*) in_a_recovery ;;
	esac
	hspmd grow "$nodes" o >>resize.log 2>&1 || true
}

begins() {
	alive || { show; exit 1; }
	[[ -n $(told) ]]
}

start
wait_for 300 "the first step" begins || { show; exit 1; }
