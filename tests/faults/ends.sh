# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Faults at the end of a run: short jobs, one after the other, with drawn lengths and checkpoints. While the last steps run, or while the
# last checkpoint is blocked, checkpoints are requested, SIGTERM is sent, processes are killed or stopped, or the disk fails. Each run ends
# by itself with all steps and a complete checkpoint of the last; one that received SIGTERM, or whose disk failed, may reach this only after
# it is resumed. Sourced by tests/faults/chaos after local.sh.

cp job.json any.json
most=8 may_fail=''
jq --argjson steps "$most" '.steps = $steps | .checkpoint = { local: "undisturbed-ckpt", every_s: 100000 }' any.json >undisturbed.json
hspmd run --job undisturbed.json --local 1 --output undisturbed >undisturbed.log 2>&1 || { tail undisturbed.log; exit 1; }

# A short job with any alignment of checkpoints and end; for some the last checkpoint is the only one.
draw_job() {
	draw "$most"
	steps=$((drawn + 1))
	draw 6
	every=$((drawn ? drawn : 1000000))
	jq --argjson steps "$steps" --argjson every "$every" '.steps = $steps | .checkpoint |= (del(.every_s) | .every_steps = $every)' any.json \
		>job.json
	rm -rf o ckpt "$order"
	: >run.log
	may_fail=''
}

put_order() { # CALL PART ACT...
	echo "$*" >order.new && mv order.new "$order"
}

all_made() {
	local now
	alive || return 0
	now=$(told)
	((${now:--1} >= steps - 1))
}

# All steps are made, and processes wait while they write the last checkpoint, or an earlier one, until the order is removed.
hold_the_last() {
	put_order write safetensors hold
	wait_for 120 "the last of $steps steps" all_made || { show; exit 1; }
	instant 5
}

ask_to_the_end() {
	say "$steps steps, every $every: checkpoints are asked for to the end"
	while alive; do
		timeout 150 hspmd checkpoint o >>asked.log 2>&1
		(($? != 124)) || { echo "a request was not answered"; show; exit 1; }
	done
}

terminate() {
	say "$steps steps, every $every: SIGTERM $1"
	may_fail=yes
	kill -TERM "$run" 2>/dev/null || true
}

at_the_end() {
	local -a calls=(open write fsync close rename mkdir fallocate unlink unlinkat any) parts=(safetensors manifest step- /n) \
		acts=(kill kill kill stop 28 5 30)
	local call part act
	draw 10
	case $drawn in
	0 | 1) ask_to_the_end ;;
	2 | 3)
		draw "${#calls[@]}" && call=${calls[drawn]}
		draw "${#parts[@]}" && part=${parts[drawn]}
		draw "${#acts[@]}" && act=${acts[drawn]}
		say "$steps steps, every $every: $act at $call of $part"
		[[ $act =~ ^[a-z] ]] || may_fail=yes
		put_order "$call" "$part" "$act"
		;;
	4 | 5 | 6)
		hold_the_last
		say "$steps steps, every $every: while the last checkpoint is held up:"
		hurt
		instant 10
		rm -f "$order"
		;;
	7)
		hold_the_last
		terminate "while the last checkpoint is held up"
		draw 2
		((drawn)) || rm -f "$order"
		;;
	8)
		instant 15
		terminate "at any time"
		;;
	9)
		say "$steps steps, every $every: every write of a checkpoint fails"
		may_fail=yes
		put_order write safetensors keep 28
		;;
	esac
}

ended() { # sets $status
	wait_for 200 "the end of $steps steps" gone "$run" || { show; exit 1; }
	wait "$run"
	status=$?
}

fails() {
	echo "$*; to repeat it: $(repeat "$seed")"
	show
	exit 1
}

for ((i = 0; i < faults; i++)); do
	draw_job
	start --plan plan.json
	at_the_end
	ended
	rm -f "$order"
	if ((status)) && [[ -n $may_fail ]]; then
		start --resume
		ended
	fi
	((status == 0)) || fails "the run ended with status $status"
	hspmd checkpoint verify ckpt --step "$steps" >verify.log 2>&1 || { cat verify.log; fails "the last checkpoint is not whole"; }
	jq -cR --argjson steps "$steps" 'fromjson? | objects | select(has("loss") and .step < $steps)' undisturbed/metrics.jsonl >same.jsonl
	"$top/tests/compare-losses" o/metrics.jsonl same.jsonl >compared.log 2>&1 || { cat compared.log; fails "the losses differ"; }
	wait_for 60 "all processes to end" none_left || fails "processes are left: $(processes)"
	remove_memory
done
echo "$faults ends, and every loss as undisturbed"
