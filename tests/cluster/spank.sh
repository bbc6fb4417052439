#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Slurm plugin on a real Slurm: what is refused at submission and in which words, what reaches the job, that a job without --hspmd is
# not touched, and that no node is ever drained. Usage: spank.sh PLUGIN.so (the built plugin)
set -u
here=$(dirname "$(readlink -f "$0")")
mini=$here/../../contrib/minicluster/minicluster
if [ "${HSPMD_MINI:-}" = "" ]; then
	plugin=$(readlink -f "${1:?usage: spank.sh PLUGIN.so}")
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -m 755 "$work/policies.d"
	echo "PartitionName=spot1 Nodes=ALL State=UP" >"$work/extra.conf"
	export work
	"$mini" run --nodes 2 --plugin "$plugin" --plugin-args "policies=$work/policies.d owner=$(id -un) default_partition=normal" \
		--slurm-conf-extra "$work/extra.conf" "$(readlink -f "$0")"
	exit
fi

failed=0
cd "$work" || exit 1
say() { # OK|FAILED WHAT
	echo "$1 $2"
	[ "$1" = OK ] || failed=1
}
refused() { # WORDS COMMAND...: fails, and says so
	local words=$1 said
	shift
	said=$("$@" 2>&1) && { say FAILED "$*: was taken"; return; }
	case $said in
	*"$words"*) say OK "$*" ;;
	*) say FAILED "$*: expected \"$words\", got: $said" ;;
	esac
}
prints() { # LINES COMMAND...: succeeds and prints these lines, in any order
	local want got
	want=$(sort <<<"$1")
	shift
	got=$("$@" | sort)
	if [ "$got" = "$want" ]; then say OK "$*"; else say FAILED "$*: expected [$want], got [$got]"; fi
}
job() { # what a batch job sees of hspmd
	rm -f out.txt
	sbatch -Q -W -o out.txt "$@" batch.sh >&2 && cat out.txt
}

cat >policies.d/20-spot.json <<'END'
{ "format": "hspmd-policy-1", "rules": [ { "name": "spot", "match": { "partition": ["spot*"] }, "limits": { "max_nodes": 8 } } ] }
END
head -c 100000 /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/LGPL-2.1 >corpus.bin
echo '{ "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 256, "n_positions": 64 }' >config.json
cat >job.json <<'END'
{ "format": "hspmd-job-1", "model": "config.json", "init": "random", "data": { "train": ["corpus.bin"], "kind": "bytes" },
  "seq_len": 32, "global_batch": 8, "steps": 10, "seed": 1, "optimizer": { "type": "adamw", "lr": 1e-3 }, "precision": "fp32",
  "elastic": { "min_nodes": 1, "max_nodes": 12 } }
END
printf '#!/bin/bash\n/usr/bin/env | grep "^HSPMD_[JNPC]"; :\n' >batch.sh
printf '#!/bin/bash\n/usr/bin/srun -n1 /usr/bin/env | grep "^HSPMD_[JNPC]"; :\n' >step.sh
cp batch.sh inner.sh

# What reaches the job.
prints "HSPMD_JOB=$work/job.json" job --hspmd=job.json
all="HSPMD_JOB=$work/job.json
HSPMD_NODES=1-8
HSPMD_POLICY=spot
HSPMD_CHECKPOINT=$work"
prints "$all" job -p spot1 --hspmd=job.json --hspmd-nodes=1-8 --hspmd-policy=spot --hspmd-checkpoint="$work"
prints "$all" job --export=NONE -p spot1 --hspmd=job.json --hspmd-nodes=1-8 --hspmd-policy=spot --hspmd-checkpoint="$work"
cp step.sh batch.sh
prints "$all" job -p spot1 --hspmd=job.json --hspmd-nodes=1-8 --hspmd-policy=spot --hspmd-checkpoint="$work"
cp inner.sh batch.sh
prints "HSPMD_JOB=$work/job.json" salloc -Q -N1 --hspmd=job.json bash batch.sh
prints "HSPMD_JOB=$work/job.json" srun -Q -n1 --hspmd=job.json bash batch.sh
HSPMD_NODES=3-4 HSPMD_POLICY=left-over prints "HSPMD_JOB=$work/job.json" job --hspmd=job.json
# From another folder, inside a job that has the option: Slurm hands it on, the path in it is still the first one's.
printf '#!/bin/bash\nmkdir -p sub; cd sub; sbatch -Q -W -o out.txt ../inner.sh >/dev/null; cat out.txt\n' >batch.sh
prints "HSPMD_JOB=$work/job.json" job --hspmd=job.json
cp inner.sh batch.sh

# What is refused.
sed 's/"steps": 10/"steps": -1/' job.json >steps.json
sed 's/"config.json"/"none.json"/' job.json >model.json
: >empty.bin
sed 's/corpus.bin/empty.bin/' job.json >data.json
sed 's/"max_nodes": 12/"max_nodes": 8/' job.json >small.json
refused "steps.json: steps: expected" sbatch --hspmd=steps.json batch.sh
refused "none.json" sbatch --hspmd=model.json batch.sh
refused "empty.bin" sbatch --hspmd=data.json batch.sh
refused "steps.json: steps: expected" srun -n1 --hspmd=steps.json true
refused "steps.json: steps: expected" salloc -n1 --hspmd=steps.json true
refused "nothere.json" sbatch --hspmd=nothere.json batch.sh
refused "policy spot (20-spot.json) allows at most 8 nodes; 12 asked" sbatch -p spot1 --hspmd=job.json batch.sh
refused "policy spot (20-spot.json) allows at most 8 nodes; 9 asked" sbatch -p spot1 --hspmd=job.json --hspmd-nodes=2-9 batch.sh
refused 'partition "normal" is not one of: spot*' sbatch --hspmd=small.json --hspmd-policy=spot batch.sh
refused 'there is no policy "nope"' sbatch --hspmd=job.json --hspmd-policy=nope batch.sh
refused "expected MIN-MAX" sbatch --hspmd=job.json --hspmd-nodes=0-2 batch.sh
refused "goes beyond elastic.min_nodes" sbatch --hspmd=job.json --hspmd-nodes=1-20 batch.sh
refused "--nodes asks for at least 13" sbatch --hspmd=job.json -N 13 batch.sh
refused "does nothing without --hspmd=FILE" sbatch --hspmd-nodes=1-2 batch.sh
refused "not a folder" sbatch --hspmd=job.json --hspmd-checkpoint="$work/job.json" batch.sh
chmod 666 policies.d/20-spot.json
refused "everybody may write it" sbatch --hspmd=job.json batch.sh
chmod 644 policies.d/20-spot.json
[ "$(squeue -h | wc -l)" = 0 ] && say OK "nothing refused was queued" || say FAILED "a refused job is in the queue"

# Without --hspmd: the same environment as with no plugin at all.
printf '#!/bin/bash\n/usr/bin/env | grep -v "^SLURM_JOB_ID\\|^SLURM_JOBID\\|^SLURM_TASK_PID\\|^SLURM_JOB_\\(START\\|END\\)" | sort\n' >batch.sh
job >with.txt
conf=$(dirname "$SLURM_CONF")/plugstack.conf
cp "$conf" plugstack.save
: >"$conf"
job >without.txt
if cmp -s with.txt without.txt && [ -s with.txt ]; then say OK "a job without --hspmd is not touched"; else say FAILED "a job without --hspmd: $(diff with.txt without.txt)"; fi
# A wrong plugstack.conf: said, and nothing else happens.
sed 's/default_partition=/default_partitoin=/' plugstack.save >"$conf"
said=$(sbatch -Q -W -o out.txt batch.sh 2>&1) && case $said in
*'unknown argument "default_partitoin"'*) say OK "unknown plugin argument" ;;
*) say FAILED "unknown plugin argument: $said" ;;
esac
cp plugstack.save "$conf"

[ -z "$(sinfo -h -R)" ] && say OK "no node was drained" || say FAILED "drained: $(sinfo -R)"
exit $failed
