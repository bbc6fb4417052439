# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What runs on this machine have in common, of whatever trainer: faults at the moments of a switch. The kind defines hurt, workers NODE, and
# the variables run and folder.

alive() {
	kill -0 "$run" 2>/dev/null
}

none_left() {
	[[ -z $(processes) ]]
}

gone() { # PID
	! kill -0 "$1" 2>/dev/null
}

show() {
	tail -n 40 "$folder/run.log"
}

# ---- faults

signal() { # SIGNAL WHAT PID...
	say "$1 $2 (${*:3})"
	# Some may have ended by themselves meanwhile.
	(($# < 3)) || { kill "-$1" "${@:3}"; } 2>/dev/null || true
}

perhaps_another() {
	draw 4
	((drawn)) || hurt
}

resize() {
	{ hspmd shrink "$((nodes - 1))" o || hspmd grow "$nodes" o; } >>resize.log 2>&1 &
	resizing=$!
}

in_a_switch() {
	local -a phases=('asked to (grow|shrink)' 'generation [0-9]+: ' 'generation [0-9]+: ' 'generation [0-9]+ on ')
	local phase
	draw "${#phases[@]}" && phase=${phases[drawn]}
	log_mark
	resize
	log_says "$phase" 20
	instant 4
	say "in a switch, after \"$phase\":"
	hurt
	perhaps_another
	wait_for 120 "the resize to end" gone "$resizing" || { show; exit 1; }
	# With all nodes back, so that there is always one to spare.
	hspmd grow "$nodes" o >>resize.log 2>&1 || true
}

in_a_recovery() {
	local -a phases=('is given up' 'generation [0-9]+: ')
	local phase
	draw "${#phases[@]}" && phase=${phases[drawn]}
	draw "$nodes"
	log_mark
	signal KILL "worker of n$drawn" $(workers "$drawn")
	log_says "$phase" 20
	instant 3
	say "while it recovers, after \"$phase\":"
	hurt
}
