# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Faults of a job on a private Slurm cluster: kill -9 or SIGSTOP of a worker, a dead job controller, a node that dies with all of its
# processes, a node whose link is cut (network namespaces; as root), a shrink without notice. Faults come at any time, during switches, and
# two at once. Lost nodes come back before the next fault.
. "$top/tests/cluster/training.sh"

isolate=()
if [[ $EUID == 0 ]] && ip netns add hspmd-try-$$ 2>/dev/null; then
	ip netns del hspmd-try-$$
	isolate=(--isolate)
	# UCX takes network namespaces of one kernel for one machine, and would not use the link.
	export UCX_TLS=tcp UCX_NET_DEVICES=eth0
else
	note "no link is cut: network namespaces cannot be made here"
fi
start_cluster_with_plugin --nodes "$nodes" "${isolate[@]}"
WORK=$HSPMD_MINI/jobs/chaos
mkdir -p "$WORK"
cd "$WORK" || exit 1

show() {
	show_everything
}

alive() {
	! job_ended "$job"
}

end_run() {
	scancel "$job"
	wait_for 120 "job $job to end" job_ended "$job"
}

# ---- faults; the first node, on which the controller runs, gets only kill -9 of processes

dead='' cut=''

hurt() {
	draw 9
	local which=$drawn node
	draw $((nodes - 1))
	node=n$((drawn + 1))
	# One node at a time: the job has requested a copy on one other node.
	[[ -z $dead$cut ]] || ((which < 4)) || which=0
	case $which in
	0 | 1) say "kill -9 of the workers on $node"; signal KILL $(worker_pids "$node") ;;
	2) say "the controller is killed"; signal KILL "$(jq .pid "$output/contact.json" 2>/dev/null)" ;;
	3) say "the workers on $node hang"; signal STOP $(worker_pids "$node") ;;
	4 | 5) say "node $node dies"; "$minicluster" kill-node "$node" --down; dead=$node ;;
	6)
		say "scontrol takes $node without a word"
		scontrol update JobId="$job" NodeList="$(job_nodes "$job" | tr ' ' '\n' | grep -vx "$node" | paste -sd ,)" || true
		;;
	*)
		((${#isolate[@]})) || { say "kill -9 of the workers on $node"; signal KILL $(worker_pids "$node"); return; }
		say "the link of $node is cut"
		"$minicluster" cut-node "$node"
		cut=$node
		;;
	esac
}

signal() { # SIGNAL PID...
	(($# < 2)) || { kill "-$1" "${@:2}"; } 2>/dev/null || true
}

# Waits until nodes and links are back, and the job has all nodes.
come_back() {
	local since=${1:--1}
	wait_for 240 "steps after that" beyond "$((since + 1))" || { show; exit 1; }
	[[ -z $cut ]] || "$minicluster" join-node "$cut"
	[[ -z $dead ]] || "$minicluster" start-node "$dead" || exit 1
	dead='' cut=''
	hspmd grow "$nodes" "$job" --timeout 60 >>grow.log 2>&1 || true
}

one_fault() {
	local since
	draw 4
	if ((drawn == 0)); then
		log_mark
		{ hspmd shrink $((nodes - 1)) "$job" || hspmd grow "$nodes" "$job"; } >>resize.log 2>&1 &
		log_says 'generation [0-9]+: ' 20
	fi
	instant 5
	since=$(told)
	hurt
	draw 4
	((drawn)) || hurt
	come_back "$since"
}

prepare_endless_job '.checkpoint.replicas = 1 | .elastic.max_nodes = '"$nodes"
unset HSPMD_TEST_STEP_S # faults are to interrupt steps
submit -N "$nodes" || exit 1
metrics=$output/metrics.jsonl log=$output/hspmd.log
has_checkpoint || exit 1
