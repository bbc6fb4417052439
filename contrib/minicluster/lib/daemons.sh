# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Starting and ending the daemons of one private cluster.

require_programs() {
	local program missing=() munge=(munged munge unmunge)
	[[ $MINI_AUTH == munge ]] || munge=()
	for program in "${munge[@]}" my_print_defaults mariadb-install-db mariadbd slurmdbd slurmctld slurmd sacctmgr scontrol sinfo setsid
	do
		command -v "$program" >/dev/null || missing+=("$program")
	done
	((${#missing[@]} == 0)) || die \
		"not installed: ${missing[*]} (Debian and Ubuntu: munge mariadb-server-core mariadb-client-core slurm-wlm slurmdbd)"
}

start_munged() {
	spawn munged munged --foreground --force --num-threads=2 --key-file="$MINI_DIR/etc/munge.key" --socket="$MINI_DIR/run/munge" \
		--pid-file="$MINI_DIR/run/munged.self" --log-file="$MINI_DIR/log/munged.log" --seed-file="$MINI_DIR/run/munge.seed"
}

munge_answers() {
	munge --socket="$MINI_DIR/run/munge" --no-input | unmunge --socket="$MINI_DIR/run/munge"
}

# A database that starts removes all temporary tables (#sql...) from its folder for them, also those that another one is using: each has a
# folder of its own. Memory may be short for a moment.
install_database() { # [--user=USER]
	local kept=${MINICLUSTER_DATABASE-}
	mkdir -p "$MINI_DIR/tmp/db" || return 1
	if [[ -z $kept ]]; then
		make_database "$@"
		return
	fi
	# The first cluster makes it, and the others wait for that.
	(
		flock 9 &&
			if [[ ! -d $kept ]]; then
				make_database "$@" && rm -rf -- "$kept.part" && cp -r "$MINI_DIR/db" "$kept.part" && mv "$kept.part" "$kept"
			else
				rm -rf -- "$MINI_DIR/db" && cp -r "$kept" "$MINI_DIR/db"
			fi
	) 9>"$kept.lock"
}

make_database() { # [--user=USER]
	TMPDIR=$MINI_DIR/tmp/db mariadb-install-db --no-defaults "$@" --datadir="$MINI_DIR/db" --auth-root-authentication-method=normal \
		--skip-test-db --innodb-log-file-size=8M --tmpdir="$MINI_DIR/tmp/db" >"$MINI_DIR/log/mariadb-install.out" 2>&1
}

# With these sizes the database is small and quick to create; nothing here has to survive a power failure.
start_mariadb() {
	local -a user=()
	local attempt
	((EUID != 0)) || user=(--user=root)
	for attempt in 1 2 3; do
		install_database "${user[@]}" && break
		say "mariadb-install-db failed:"
		tail -n 20 "$MINI_DIR/log/mariadb-install.out" >&2
		((attempt < 3)) || return 1
		rm -rf -- "${MINI_DIR:?}/db"
	done
	# slurmdbd would make the database itself after its first connection has failed, but MariaDB's client 11.8.9 answers no query then.
	cat >"$MINI_DIR/etc/mariadb-init.sql" <<-END
		CREATE DATABASE IF NOT EXISTS slurm_acct;
		CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY 'slurm';
		GRANT ALL ON slurm_acct.* TO 'slurm'@'localhost';
	END
	spawn mariadbd mariadbd --no-defaults "${user[@]}" --datadir="$MINI_DIR/db" --skip-networking --socket="$MINI_DIR/run/db" \
		--pid-file="$MINI_DIR/run/mariadbd.self" --tmpdir="$MINI_DIR/tmp/db" \
		--init-file="$MINI_DIR/etc/mariadb-init.sql" --innodb-log-file-size=8M --innodb-buffer-pool-size=32M \
		--innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900 --performance-schema=OFF
}

start_slurmdbd() {
	spawn slurmdbd env SLURM_CONF="$SLURM_CONF" MYSQL_UNIX_PORT="$MINI_DIR/run/db" slurmdbd -D
}

add_accounts() {
	local user
	sacctmgr -i add cluster mini >/dev/null &&
		sacctmgr -i add account mini cluster=mini Description=mini Organization=mini >/dev/null || return 1
	for user in "$MINI_USER" ${MINI_USERS//,/ }; do
		# The user root is there already, with the account root.
		sacctmgr -i add user "$user" account=mini cluster=mini DefaultAccount=mini AdminLevel=None >/dev/null || return 1
		[[ $user == "$MINI_USER" ]] && { sacctmgr -i modify user "$user" set AdminLevel=Admin DefaultAccount=mini >/dev/null || return 1; }
	done
	return 0
}

start_slurmctld() {
	spawn slurmctld slurmctld -D
}

start_slurmd() { # NODE
	# Split on purpose: the wrapper is a command with its arguments.
	# shellcheck disable=SC2086
	local -a space=()
	[[ -z $MINI_NETWORK ]] || space=(ip netns exec "$(network_name "$1")")
	MINICLUSTER_NODE=$1 spawn "$1" "${space[@]}" $MINI_NODE_WRAPPER ${MINI_NODE_WRAPPER:+"$1"} slurmd -D -N "$1"
}

nodes_idle() { # NODE...
	local IFS=,
	[[ $(sinfo -h -N -o %t -p normal -n "$*" | sort | uniq -c | tr -s ' ') == " $# idle" ]]
}

# return_node NODE SINCE: puts a node back into service once slurmctld has heard from a slurmd that started at SINCE or later.
return_node() {
	local line
	line=$(scontrol show node "$1") || return 1
	[[ $line =~ SlurmdStartTime=([^ ]+) ]] && (($(date -d "${BASH_REMATCH[1]}" +%s) >= $2)) || return 1
	# Refused if the node is up already, which is as good.
	scontrol update NodeName="$1" State=RESUME
	[[ $(sinfo -h -n "$1" -o %t -p normal) =~ ^(idle|mix|alloc|plnd|resv|comp)$ ]]
}

# Starts everything on ports from $1 on; on failure the caller ends what has been started.
start_daemons() {
	local node limit=$MINI_TIMEOUT
	write_config "$1"
	[[ $MINI_AUTH != munge ]] || start_munged
	start_mariadb || return 1
	[[ $MINI_AUTH != munge ]] || wait_until "$limit" "munged to answer" munged munge_answers || return 1
	wait_until "$limit" "MariaDB to be ready" mariadbd grep -q 'ready for connections' "$MINI_DIR/log/mariadbd.out" || return 1
	# With auth/slurm a slurmd proves to the other daemons who runs sacctmgr, and may be there before slurmctld.
	[[ $MINI_AUTH != slurm ]] || start_slurmd n0
	start_slurmdbd
	wait_until "$limit" "slurmdbd to answer" slurmdbd sacctmgr -n list cluster || return 1
	add_accounts || { say "sacctmgr could not add cluster, account and users"; return 1; }
	start_slurmctld
	for node in $(node_names); do
		[[ $MINI_AUTH == slurm && $node == n0 ]] || start_slurmd "$node"
	done
	wait_until "$limit" "slurmctld to answer" slurmctld scontrol ping || return 1
	# shellcheck disable=SC2046
	wait_until "$limit" "all nodes to be idle" slurmctld nodes_idle $(node_names) || {
		sinfo -N -l >&2
		show_log n0
		return 1
	}
}
