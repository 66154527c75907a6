# Cables and switches within one guest, with a Soft-RoCE device at each end.
#
# Both ends have their addresses in one system, so rules send what goes from one to the other over the cable instead of around it: loss can
# be put there, and each end is a device of its own. (The driver of this kernel works in the first network namespace only.)

# ordered NAME: what comes to a device is taken by one processor. Two would let packets pass each other when their sender moves from one to
# the other, and UC drops a message whose packets are out of order.
ordered() {
    echo 1 > "/sys/class/net/$1/queues/rx-0/rps_cpus"
}

# port NAME ADDRESS NUMBER: an end of a cable, with a device rdma_NAME. NUMBER is its own, of two digits.
port() {
    ip link set dev "$1" address "02:00:00:00:00:$3" up
    ordered "$1"
    ip addr add "$2/24" dev "$1"
    echo 1 > "/proc/sys/net/ipv4/conf/$1/accept_local"
    echo 1 > "/proc/sys/net/ipv4/conf/$1/arp_ignore"
    echo 0 > "/proc/sys/net/ipv4/conf/$1/rp_filter"
    ip rule add pref 10 iif "$1" lookup local
    ip rule add pref 20 from "$2" to "$2" lookup local
    ip rule add pref 30 from "$2" to "${2%.*}.0/24" lookup "1$3"
    ip route add "${2%.*}.0/24" dev "$1" table "1$3"
    rdma link add "rdma_$1" type rxe netdev "$1"
}

# knows NAME ADDRESS NUMBER: what the end NAME has to know of another.
knows() {
    ip neigh replace "$2" lladdr "02:00:00:00:00:$3" dev "$1" nud permanent
}

# cable NAME ADDRESS NUMBER NAME ADDRESS NUMBER: two ends, joined.
cable() {
    ip link add name "$1" type veth peer name "$4"
    port "$1" "$2" "$3"
    port "$4" "$5" "$6"
    knows "$1" "$5" "$6"
    knows "$4" "$2" "$3"
}

# switch COUNT: ends p0, p1, ... at 10.0.0.10, 10.0.0.11, ..., all joined; devices rdma_p0, rdma_p1, ...
switch() {
    ip link add name switch type bridge
    ip link set dev switch up
    for i in $(seq 0 $(($1 - 1))); do
        ip link add name "p$i" type veth peer name "s$i"
        ip link set dev "s$i" master switch up
        ordered "s$i"
        port "p$i" "10.0.0.1$i" "1$i"
        for j in $(seq 0 $(($1 - 1))); do
            [ "$i" = "$j" ] || knows "p$i" "10.0.0.1$j" "1$j"
        done
    done
}

# clear: no cable is left.
clear() {
    for name in $(rdma link | sed -n 's,^link \([^/]*\)/.*,\1,p'); do rdma link delete "$name"; done
    for path in /sys/class/net/*; do
        name=${path##*/}
        [ "$name" = lo ] || ip link delete dev "$name" 2> /dev/null
    done
    for pref in 10 20 30; do while ip rule delete pref "$pref" 2> /dev/null; do :; done; done
}

# UC tries nothing again: what the receiving processor has no room for would be lost.
echo 100000 > /proc/sys/net/core/netdev_max_backlog

# The rule that comes before all others takes every address of this system for near. It has to come later.
if ip rule | grep -q '^0:'; then
    ip rule add pref 1000 lookup local
    ip rule delete pref 0
    echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
fi
