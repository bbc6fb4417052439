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

# What lib.sh shows of a failed test, and what hspmdctld has decided.
show_more() {
	{ cluster && tail -n 20 "$HSPMD_MINI/log/ctld.jsonl" | cut -c 1-300; } 2>&1 | sed 's/^/  | /'
}

# ---- elastic jobs that train nothing

# How an elastic job that trains nothing takes and returns nodes: as a real one without GRES does.
write_resize() {
	cat >"$HSPMD_MINI/jobs/resize" <<-'END'
		#!/bin/bash
		set -e
		# A test may make it wait while it carries out a request.
		while [[ -e ${0%/*}/hold ]]; do sleep 0.1; done
		job=$SLURM_JOB_ID partition=$SLURM_JOB_PARTITION
		for name in ${!SLURM_*}; do [[ $name == SLURM_CONF ]] || unset "$name"; done
		cd "$(mktemp -d)"
		if [[ $1 == grow ]]; then
			# A helper job that does not get its nodes at once may wait for long although they are idle: submit it again.
			for attempt in {1..10}; do
				helper=$(salloc --no-shell -p "$partition" -N "$2" --immediate=2 --dependency=expand:"$job" 2>&1 |
					sed -n 's/.*Granted job allocation \([0-9]*\).*/\1/p')
				[[ -z $helper ]] || break
			done
			[[ -n $helper ]]
			scontrol update JobId="$helper" NumNodes=0
			scontrol update JobId="$job" NumNodes=ALL
		else
			keep=$(comm -23 <(scontrol show hostnames "$(squeue -h -j "$job" -o %N)" | sort) <(tr , '\n' <<<"$2" | sort) | paste -sd,)
			scontrol update JobId="$job" NodeList="$keep"
		fi
	END
	chmod 755 "$HSPMD_MINI/jobs/resize"
}

# elastic USER MIN MAX [POLICY [FAKE-OPTION...]]: submits an elastic job that waits to be resized; sets $job to its id.
elastic() {
	local user=$1 dir=$WORK/$1
	mkdir -p "$dir"
	chmod 777 "$WORK" "$dir"
	cat >"$dir/job.sh" <<-END
		#!/bin/bash
		exec $fake --ctld "\$HSPMD_CTLD" --munge $socket --job \$SLURM_JOB_ID --min $2 --max $3 --pause 0.1 ${4:+--policy $4} ${*:5} \\
			--command $HSPMD_MINI/jobs/resize
	END
	cp "$HSPMD_MINI/jobs/job/"* "$dir/"
	chmod -R a+rX "$dir"
	job=$(cd "$dir" && as "$user" sbatch --parsable -N "$2" --hspmd=job.json --hspmd-nodes="$2-$3" ${4:+--hspmd-policy=$4} \
		-o "$dir/job.log" job.sh)
	wait_for 150 "job $job to run" job_is "$job" RUNNING
}

write_job() {
	local to=$HSPMD_MINI/jobs/job
	mkdir -p "$to"
	head -c 100000 /usr/share/common-licenses/GPL-3 >"$to/corpus.bin"
	echo '{ "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 64 }' >"$to/config.json"
	echo '{ "format": "hspmd-job-1", "model": "config.json", "init": "random", "data": { "train": ["corpus.bin"], "kind": "bytes" },
		"seq_len": 32,
		"global_batch": 8, "steps": 10, "seed": 1, "optimizer": { "type": "adamw", "lr": 1e-3 }, "precision": "fp32" }' >"$to/job.json"
}

cluster_says() { # PATTERN
	cluster | grep -q "$1"
}

# hspmdctld has polled Slurm four more times, which takes longer than idle nodes wait and than the cooldown: it would have carried out all
# that it had to do.
some_rounds() {
	wait_for 150 "some rounds" rounds_since "$(cluster --json | jq -c .totals)" 4
}

rounds_since() { # TOTALS COUNT
	[[ $(cluster --json | jq --argjson b "$1" '.totals.rounds - $b.rounds') -ge $2 ]]
}

# start_busy_site: a site with two policy files, hspmdctld, and jobs of `elastic`; sets $rules to the number of rules.
start_busy_site() {
	fake=$build/tests/bench/policy/fake_controllers
	[[ -x $fake && -x $build/hspmdctld ]] ||
		{ echo "skip ${0##*/}: hspmdctld and fake_controllers are not built (make check builds them)"; exit 77; }
	start_site
	cat >"$HSPMD_MINI/etc/policies.d/10-fill.json" <<'END'
{ "format": "hspmd-policy-1", "rules": [ { "name": "fill", "grow": { "into_idle": true, "after_idle_s": 1, "cooldown_s": 2,
	"min_gain": 0.01 },
    "shrink": { "for_pending": "higher_priority", "yield_before_preemption": true, "cooldown_s": 1 } } ] }
END
	cat >"$HSPMD_MINI/etc/policies.d/20-small.json" <<'END'
{ "format": "hspmd-policy-1", "rules": [ { "name": "small", "match": { "policy": ["small"] }, "limits": { "max_nodes": 2 },
    "grow": { "into_idle": true, "after_idle_s": 1, "cooldown_s": 2, "min_gain": 0.01 }, "shrink": { "for_pending": "any" } },
  { "name": "fair", "match": { "policy": ["fair"] }, "share": { "by": "proportional", "rebalance": true },
  	"shrink": { "for_pending": "any", "cooldown_s": 0 },
    "grow": { "into_idle": true, "after_idle_s": 1, "cooldown_s": 2, "min_gain": 0.01 } },
  { "name": "heavy", "match": { "policy": ["heavy"] }, "share": { "weight": 5000 }, "grow": { "into_idle": true, "after_idle_s": 1,
  	"cooldown_s": 2, "min_gain": 0.01 } },
  { "name": "safe", "match": { "policy": ["safe"] }, "checkpoint": { "min_replicas": 2 } },
  { "name": "all", "match": { "policy": ["all"] }, "grow": { "into_idle": true, "after_idle_s": 1, "cooldown_s": 2, "min_gain": 0.01 } },
  { "name": "devices", "match": { "policy": ["devices"] }, "limits": { "max_devices": 2 }, "grow": { "into_idle": true, "after_idle_s": 1,
  	"cooldown_s": 2, "min_gain": 0.01 } },
  { "name": "priced", "match": { "policy": ["priced"] }, "limits": { "max_price_per_hour": 5 },
  	"grow": { "into_idle": true, "after_idle_s": 1, "cooldown_s": 2, "min_gain": 0.01 } },
  { "name": "types", "match": { "policy": ["types"] }, "limits": { "device_types": ["H20"] },
  	"grow": { "into_idle": true, "after_idle_s": 1, "cooldown_s": 2, "min_gain": 0.01 } },
  { "name": "paid", "match": { "policy": ["paid"] }, "limits": { "max_jobs_per_user": 1, "max_price_per_hour": 5 } } ] }
END
	rules=$(cat "$HSPMD_MINI"/etc/policies.d/*.json | jq -s '[.[].rules // [] | length] | add')
	write_resize
	write_job
	ctld_options=(--poll 1,20) # on a busy machine slurmctld is slow, and is then polled less often; not for minutes
	ctld_start || exit 1
}
