# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A site: hspmdctld next to a private Slurm, and several users.
. "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ctld_options=()

ctld_start() {
	# hspmdctld has its own descriptors: a test must not wait for it.
	hspmdctld --listen "127.0.0.1:$port" --policies "$HSPMD_MINI/etc/policies.d" --metrics "127.0.0.1:$((port + 1))" \
		--event-log "$HSPMD_MINI/log/ctld.jsonl" "${ctld_options[@]}" </dev/null >>"$HSPMD_MINI/log/ctld.log" 2>&1 &
	echo $! >"$HSPMD_MINI/run/ctld"
	wait_for 90 "hspmdctld to listen" cluster_answers
}

ctld_stop() {
	local pid
	pid=$(cat "$HSPMD_MINI/run/ctld")
	kill -"${1:-TERM}" "$pid" 2>/dev/null
	wait_for 90 "hspmdctld to end" not kill -0 "$pid" 2>/dev/null
}

cluster() {
	hspmd cluster --ctld "$(id -u)@127.0.0.1:$port" --munge-socket "$socket" "$@"
}

cluster_answers() {
	cluster >/dev/null 2>&1
}

cluster_knows() { # JOB NODES
	cluster --json | jq -e --argjson j "$1" --argjson n "$2" '.jobs[] | select(.job == $j and .reachable and .nodes == $n)' >/dev/null
}

since() { # TIME: seconds, for the log
	awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'
}

# as USER COMMAND...: runs the command as another user if we may, else as ourselves.
as() {
	local user=$1
	shift
	if [[ $user == "$(id -un)" ]]; then "$@"; else runuser -u "$user" -- "$@"; fi
}

# start_site [OPTION...]: starts the cluster as start_cluster_with_plugin does; sets $port, $socket and the users $me, $second and $third
# (one user if we may not become others).
start_site() {
	local users=()
	me=$(id -un) second=$me third=$me
	if [[ $(id -u) == 0 ]] && getent passwd games mail >/dev/null; then
		second=games third=mail
		users=(--users games,mail)
	fi
	start_training_cluster --nodes 4 --plugin-args "ctld=127.0.0.1:@spare@ hspmd=$build/hspmd" "${users[@]}" "$@"
	port=$HSPMD_MINI_PORT
	trap 'ctld_stop KILL; "$minicluster" stop' EXIT
	socket=$(sed -n 's/^AuthInfo=socket=\([^,]*\).*/\1/p' "$SLURM_CONF")
	mkdir -p "$HSPMD_MINI/jobs"
	chmod 755 "$HSPMD_MINI" "$HSPMD_MINI/jobs"
	cp "$top/contrib/site/job_submit.lua" "$(dirname "$SLURM_CONF")/"
	use_sample
	scontrol reconfigure
}

# use_sample: changes slurm.conf as the samples that we install say, including their partitions. Paths of files stay those of the test, and
# so does how often Slurm schedules: all of the sample's scheduling parameters must be there.
use_sample() {
	local line word
	sed -i '/^PartitionName=DEFAULT/!{/^PartitionName=/d}' "$SLURM_CONF"
	while read -r line; do
		case $line in
		'' | '#'* | PlugStackConfig=*) continue ;;
		SchedulerParameters=*)
			for word in $(tr , ' ' <<<"${line#*=}"); do
				grep -qE "^SchedulerParameters=(.*,)?$word(,|\$)" "$SLURM_CONF" ||
					{ note "the sample's SchedulerParameters has $word, which the tests have not"; exit 1; }
			done
			;;
		*) echo "$line" >>"$SLURM_CONF" ;;
		esac
	done <"$top/contrib/site/slurm.conf.sample"
}
