# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Nodes with networks of their own (--isolate, as root): one network namespace per node, with an address on a bridge that only this cluster
# has, so that a node's link can be cut. Names contain a checksum of the folder's name, to distinguish the remains of a killed cluster from
# those of others.

network_name() { # WHAT: at most 15 characters, the limit for names of interfaces
	printf 'h%s%s\n' "$(md5sum <<<"$MINI_DIR" | cut -c 1-8)" "$1"
}

# A network in which this machine has no address; sets MINI_NETWORK to its first three numbers.
choose_network() {
	local attempt
	for ((attempt = 0; attempt < 50; attempt++)); do
		MINI_NETWORK=10.$((100 + RANDOM % 100)).$((RANDOM % 250))
		ip -4 route show | grep -qF " $MINI_NETWORK." || [[ $(ip -4 addr show) == *"$MINI_NETWORK."* ]] || return 0
	done
	return 1
}

isolate_nodes() {
	local node i=0 bridge
	bridge=$(network_name b)
	ip link add "$bridge" type bridge && ip addr add "$MINI_NETWORK.1/24" dev "$bridge" && ip link set "$bridge" up || return 1
	for node in $(node_names); do
		local space end
		space=$(network_name "$node") end=$(network_name "v$i")
		ip netns add "$space" && ip link add "$end" type veth peer name eth0 netns "$space" && ip link set "$end" master "$bridge" up &&
			ip -n "$space" addr add "$MINI_NETWORK.$((i + 10))/24" dev eth0 && ip -n "$space" link set eth0 up && ip -n "$space" link set lo up ||
				return 1
		i=$((i + 1))
	done
}

# Removing a namespace removes its end of each pair, and so the other end.
remove_networks() {
	local node
	[[ -n $MINI_NETWORK ]] || return 0
	for node in $(node_names); do
		ip netns del "$(network_name "$node")" 2>/dev/null
	done
	ip link del "$(network_name b)" 2>/dev/null
	return 0
}

set_link() { # NODE up|down
	[[ -n $MINI_NETWORK ]] || die "its nodes share one network: start it with --isolate"
	ip link set "$(network_name "v${1#n}")" "$2"
}
