# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The configuration files of one private cluster, all under $MINI_DIR.

# free_ports COUNT: prints the first of COUNT consecutive TCP ports on which no process listens, below the range that the kernel assigns by
# itself, or in $MINICLUSTER_PORTS (FIRST-LAST). Another program may still take one before we do: the caller tries again then.
free_ports() {
	local count=$1 low=10000 high first port attempt hex
	read -r high _ </proc/sys/net/ipv4/ip_local_port_range
	((high > low + 1000)) || { low=40000; high=65000; }
	[[ ! ${MINICLUSTER_PORTS-} =~ ^([0-9]{4,5})-([0-9]{4,5})$ ]] || { low=${BASH_REMATCH[1]}; high=${BASH_REMATCH[2]}; }
	local -A taken=()
	while read -r hex; do
		taken[$((16#${hex##*:}))]=1
	done < <(awk 'FNR > 1 { print $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
	for ((attempt = 0; attempt < 100; attempt++)); do
		first=$((low + (RANDOM * 32768 + RANDOM) % (high - low - count)))
		for ((port = first; port < first + count; port++)); do
			[[ -z ${taken[$port]-} ]] || continue 2
		done
		printf '%s\n' "$first"
		return 0
	done
	return 1
}

node_names() {
	local i
	for ((i = 0; i < MINI_NODES; i++)); do
		printf 'n%s\n' "$i"
	done
}

slurm_version() {
	slurmctld -V | sed -n 's/^slurm[a-z-]* \([0-9]*\)\.\([0-9]*\).*/\1\2/p'
}

# has_auth NAME: whether Slurm's plugins, which lie beside the library of its daemons, have auth/NAME.
has_auth() {
	local library
	library=$(ldd "$(command -v slurmctld)" | sed -n 's/.*libslurmfull\.so => \([^ ]*\).*/\1/p')
	[[ -e ${library%/*}/auth_$1.so ]]
}

# How Slurm's daemons and commands prove who they are. With auth/slurm each of them has the key, or asks a daemon on its node that has it.
auth_conf() { # munge|slurm|none
	case $1 in
	munge) printf '%s\n' AuthType=auth/munge "AuthInfo=socket=$MINI_DIR/run/munge,cred_expire=10" ;;
	slurm) printf '%s\n' AuthType=auth/slurm CredType=cred/slurm ;;
	none) printf '%s\n' AuthType=auth/none CredType=cred/none ;;
	esac
}

write_config() { # FIRST_PORT
	local node others=$((MINI_OTHER_GPUS < MINI_NODES ? MINI_OTHER_GPUS : MINI_NODES))
	local count=$((MINI_NODES - others))

	{
		slurm_conf_head "$1"
		node_line 0 "$count" "$1" fake
		node_line "$count" "$others" "$1" other
		# Whole nodes, as on most clusters for training: a job never grows by a node that it already has.
		echo "PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE OverSubscribe=EXCLUSIVE"
		echo "PartitionName=normal Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=$MINI_GRACE"
		echo "PartitionName=high PriorityTier=10 PreemptMode=OFF"
		[[ -z $MINI_EXTRA ]] || cat "$MINI_EXTRA"
	} >"$MINI_DIR/etc/slurm.conf"

	slurmdbd_conf "$1" >"$MINI_DIR/etc/slurmdbd.conf"
	{ gres_conf 0 "$count" fake && gres_conf "$count" "$others" other; } >"$MINI_DIR/etc/gres.conf"
	: >"$MINI_DIR/etc/plugstack.conf"
	mkdir "$MINI_DIR/etc/policies.d"
	[[ -z $MINI_PLUGIN ]] || echo "optional $MINI_PLUGIN policies=$MINI_DIR/etc/policies.d owner=$MINI_USER default_partition=normal" \
		"${MINI_PLUGIN_ARGS//@spare@/$MINI_SPARE}" >"$MINI_DIR/etc/plugstack.conf"
	[[ -z $MINI_PLUGIN ]] || minicluster_policy >"$MINI_DIR/etc/policies.d/00-minicluster.json"
	cgroup_conf "$(slurm_version)" >"$MINI_DIR/etc/cgroup.conf"
	for node in $(node_names); do
		mkdir -p "$MINI_DIR/spool/$node" "$MINI_DIR/tmp/$node"
	done
	# The daemons require it: the file holds the password of a database that only this folder's socket reaches.
	chmod 600 "$MINI_DIR/etc/slurmdbd.conf"
}

numbers() { # FIRST COUNT: as hostlists and slurm.conf have them
	if (($2 > 1)); then echo "[$1-$(($1 + $2 - 1))]"; else echo "$1"; fi
}

node_line() { # FIRST COUNT FIRST_PORT GPU-TYPE
	local gres='' address=127.0.0.1
	(($2 > 0)) || return 0
	[[ -z $MINI_NETWORK ]] || address="$MINI_NETWORK.$(numbers $((10 + $1)) "$2")"
	((MINI_GRES == 0)) || gres="Gres=gpu:$4:$MINI_GRES"
	echo "NodeName=n$(numbers "$1" "$2") NodeHostname=localhost NodeAddr=$address Port=$(numbers $(($3 + 2 + $1)) "$2") CPUs=$MINI_CPUS" \
		"Boards=1 SocketsPerBoard=1 CoresPerSocket=$MINI_CPUS ThreadsPerCore=1 RealMemory=8192 State=UNKNOWN $gres"
}

slurm_conf_head() { # FIRST_PORT
	cat <<-END
		ClusterName=mini
		SlurmctldHost=localhost(${MINI_NETWORK:-127.0.0}.1)
		SlurmctldPort=$1
		SlurmUser=$MINI_USER
		SlurmdUser=$MINI_USER
		$(auth_conf "$MINI_AUTH")
		StateSaveLocation=$MINI_DIR/state
		SlurmdSpoolDir=$MINI_DIR/spool/%n
		TmpFS=$MINI_DIR/tmp/%n
		SlurmctldPidFile=$MINI_DIR/run/slurmctld.self
		SlurmdPidFile=$MINI_DIR/run/%n.self
		SlurmctldLogFile=$MINI_DIR/log/slurmctld.log
		SlurmdLogFile=$MINI_DIR/log/%n.log
		SlurmctldDebug=info
		SlurmdDebug=info

		# No privileges and no cgroups: everything runs as one ordinary user.
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		JobAcctGatherType=jobacct_gather/none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		SlurmdParameters=config_overrides
		MpiDefault=none
		$( ((MINI_GRES == 0)) || echo GresTypes=gpu)

		# Resizing more than once needs accounting.
		AccountingStorageType=accounting_storage/slurmdbd
		AccountingStorageHost=localhost
		AccountingStoragePort=$(($1 + 1))
		$([[ $MINI_AUTH != munge ]] || echo "AccountingStoragePass=$MINI_DIR/run/munge")

		# Decide at once; forgive nodes that come back.
		SchedulerType=sched/backfill
		SchedulerParameters=permit_job_expansion,batch_sched_delay=0,sched_interval=1,bf_interval=1
		PreemptType=preempt/partition_prio
		PreemptMode=REQUEUE
		JobRequeue=1
		MailProg=/bin/true
		ReturnToService=2
		KillWait=$MINI_KILL_WAIT
		# On a busy machine killed processes take long to end, and a node must not be drained for that ("Kill task failed").
		UnkillableStepTimeout=900
		CompleteWait=0
		InactiveLimit=0
		MinJobAge=3600
		SlurmdTimeout=30
		MessageTimeout=30
		TCPTimeout=5
	END
}

slurmdbd_conf() { # FIRST_PORT
	cat <<-END
		$(auth_conf "$MINI_AUTH" | grep -v CredType)
		DbdHost=localhost
		DbdAddr=127.0.0.1
		DbdPort=$(($1 + 1))
		SlurmUser=$MINI_USER
		StorageType=accounting_storage/mysql
		StorageHost=localhost
		StorageLoc=slurm_acct
		StorageUser=slurm
		StoragePass=slurm
		PidFile=$MINI_DIR/run/slurmdbd.self
		LogFile=$MINI_DIR/log/slurmdbd.log
		DebugLevel=info
	END
}

# Nodes that share one machine's cores are slow by turns, and that should not be reported. A rule may say otherwise.
minicluster_policy() {
	echo '{ "format": "hspmd-policy-1", "defaults": { "straggler": { "slower_than": 1000, "back_below": 900 } } }'
}

# Nothing here uses cgroups, but slurmd wants to know which version to use. The plugin of version 1 does nothing unless something uses it.
cgroup_conf() { # VERSION
	if (($1 >= 2405)); then
		echo "CgroupPlugin=disabled"
	else
		echo "CgroupPlugin=cgroup/v1"
	fi
}

# GPUs that exist on paper only: each is some device file, with another name for every node.
gres_conf() { # FIRST COUNT TYPE
	((MINI_GRES > 0 && $2 > 0)) || return 0
	local -a devices=(/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/console)
	local IFS=,
	echo "NodeName=n$(numbers "$1" "$2") Name=gpu Type=$3 File=${devices[*]:0:MINI_GRES}"
}
