# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Faults of a run on this machine: kill -9 of a worker, of a node's agent, of the job controller, or of all of a node's processes together
# with its memory; a worker that hangs (SIGSTOP); a disk that is full, or fails, while a checkpoint is written; a worker that dies or hangs
# at a drawn system call of a checkpoint; a resize; all processes at once, and --resume. Faults come at any time, during checkpoints, during
# switches from one plan to the next, during recoveries, and two at once.
#
# Devices are so small that none could hold all of the state: what is lost with a worker exists only in copies.

. "$top/tests/faults/processes.sh"
. "$top/tests/faults/switches.sh"
[[ -z $models ]] || . "$top/tests/faults/models.sh"

unset "${!SLURM@}"
folder=$(mktemp -d "${TMPDIR:-/tmp}/hspmd-faults.XXXXXX")
export HSPMD_CONTACTS=$folder/contacts
metrics=$folder/o/metrics.jsonl log=$folder/o/hspmd.log order=$folder/order
shim=$build/.libs/libcrash_shim.so
run=''
trap 'end_processes; remove_memory; [[ -n ${HSPMD_KEEP-} ]] || rm -rf "$folder"' EXIT
trap 'exit 143' TERM HUP INT
cd "$folder" || exit 1
[[ -f $shim ]] || built libcrash_shim.la || exit 1

# ---- the run

start() { # [OPTION...]
	LD_PRELOAD=$shim HSPMD_CRASH_UNDER=$folder/ckpt:/dev/shm/hspmd- HSPMD_CRASH_ORDER=$order \
		hspmd run --job job.json --cluster cluster.json --output o --step-timeout "$deadline" "$@" >>run.log 2>&1 &
	run=$!
}

saved() {
	alive || { show; exit 1; }
	[[ $(hspmd status --json o 2>/dev/null | jq '.checkpoint.step // 0') -gt 0 ]]
}

end_run() {
	local status=0
	rm -f "$order"
	kill -TERM "$run"
	wait "$run" || status=$?
	((status == 1 || status == 85)) && tail -n 1 run.log | grep -q 'stopped by SIGTERM' ||
		{ echo "the run ended with status $status"; return 1; }
	wait_for 60 "all processes to end" none_left || { echo "processes are left: $(processes)"; return 1; }
	# Nodes that left meanwhile have kept parts of older checkpoints. On a busy machine the time to leave may be over before the last
	# one is written.
	! tail -n 1 run.log | grep -q 'is complete' || hspmd checkpoint verify ckpt --step "$(($(told) + 1))" >verify.log 2>&1 ||
		{ cat verify.log; return 1; }
}

# ---- faults

hurt() {
	draw 16
	local which=$drawn node controller
	draw "$nodes"
	node=$drawn
	case $which in
	0 | 1 | 2 | 3 | 4) signal KILL "worker of n$node" $(workers "$node") ;;
	5 | 6 | 7) signal KILL "agent of n$node" $(agent "$node") ;;
	8 | 9 | 10)
		controller=$(jq .pid o/contact.json 2>/dev/null)
		[[ $controller == "$run" ]] || signal KILL controller $controller
		;;
	11 | 12 | 13)
		# Kills all processes of a node at once, and removes the state in its memory.
		signal KILL "node n$node" $(agent "$node") $(workers "$node")
		rm -rf /dev/shm/hspmd-*-"$(jq -r '.run[:12]' o/run.json)/n$node"
		;;
	14) signal STOP "worker of n$node" $(workers "$node") ;;
	15)
		signal KILL "everything" "$run" $(processes)
		wait "$run" 2>/dev/null
		end_processes || { show; exit 1; } # also what was being started in that instant
		start --resume
		;;
	esac
}

in_a_checkpoint() {
	local -a calls=(open write fsync close rename mkdir fallocate unlink unlinkat any) parts=(safetensors manifest step- /n) \
		acts=(kill kill kill stop 28 5 30)
	local call part act deadline=$((SECONDS + 10))
	draw "${#calls[@]}" && call=${calls[drawn]}
	draw "${#parts[@]}" && part=${parts[drawn]}
	draw "${#acts[@]}" && act=${acts[drawn]}
	echo "$call $part $act" >order.new && mv order.new "$order"
	while [[ -e $order ]] && ((SECONDS < deadline)) && alive; do
		sleep 0.02
	done
	[[ ! -e $order ]] && say "at $call of $part in a checkpoint: $act" || say "no checkpoint came to $call of $part"
	rm -f "$order"
	perhaps_another
}

# A disk that is full or broken until one checkpoint has failed, or could be written in part.
disk_fails() {
	local -a errors=(28 5 30)
	draw 3
	local error=${errors[drawn]}
	log_mark
	echo "write safetensors keep $error" >order.new && mv order.new "$order"
	log_says 'checkpoint g[0-9-]+ failed|is whole only because' 20
	say "every write of a checkpoint failed with errno $error"
	rm -f "$order"
	perhaps_another
}

one_fault() {
	draw 20
	case $drawn in
	0 | 1 | 2 | 3 | 4 | 5 | 6) instant 6; hurt; perhaps_another ;;
	7 | 8 | 9 | 10 | 11) in_a_checkpoint ;;
	12) disk_fails ;;
	13 | 14 | 15 | 16) in_a_switch ;;
	*) in_a_recovery ;;
	esac
}

prepare
[[ -n $ends ]] || {
	start --plan plan.json
	wait_for 120 "a checkpoint" saved || { show; exit 1; }
}
