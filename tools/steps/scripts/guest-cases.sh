# Cases in the guest, a function each: rdma-core's own programs, which show that the devices and cables are sound, then Comity over RC and UC; and
# things that the kernel of the host may lack: Yama, and a slow cable that loses packets.

# says COMMAND...: it ends well; its words are shown, and kept in /tmp/said.
says() {
    "$@" > /tmp/said 2>&1 || { code=$?; cat /tmp/said; exit $code; }
    cat /tmp/said
}
# has WORDS...: they were said.
has() { for words; do grep -qF -- "$words" /tmp/said || { echo "it did not say '$words'"; exit 1; }; done; }

pair() { cable left 10.0.1.1 11 right 10.0.1.2 12; }

case_devices_of_a_cable() {
    pair
    says ibv_devices
    has rdma_left rdma_right
    says ibv_devinfo -v
    has "PORT_ACTIVE (4)" "::ffff:10.0.1.2"
}
case_conform() {
    pair
    says conform rdma_left rdma_right
    [ "$(sed 's/ *$//; /^$/d' /tmp/said)" = "$(wanted | sed 's/ *$//; /^$/d')" ] || { echo "and not:"; wanted; exit 1; }
}
case_rc_pingpong() { pingpong rc; }
case_uc_pingpong() { pingpong uc; }
pingpong() {
    pair
    timeout 60 /programs/ibv_$1_pingpong -d rdma_left -g 1 -n 200 -c > /tmp/server &
    tries=0
    # The server is not listening at once, and only its client may try.
    until timeout 60 /programs/ibv_$1_pingpong -d rdma_right -g 1 -n 200 -c 127.0.0.1 > /tmp/said 2>&1; do
        tries=$((tries + 1))
        if [ $tries -gt 20 ] || ! grep -q connect /tmp/said; then cat /tmp/said; exit 1; fi
        sleep 1
    done
    wait
    cat /tmp/said /tmp/server
    has "200 iters in"
}

# Links of a job: RDMA and nothing else, so that no pair of ranks falls back in silence.
rdma=COMITY_LINKS=rdma
# All types too would take an emulated processor a minute: they run over the software device. `some` has operations that need every pair.
all="--quick --dtypes bf16"
some="--quick --ops all_reduce,all_to_all,send,split --dtypes bf16"

# job RANKS LINKS DEVICES SERVICE FLAGS...: the matrix of devices says what leads from one rank to another, in the form of MLX's.
job() {
    ranks=$1 links=$2 devices=$3 service=$4; shift 4
    env $links COMITY_DEVICES="$devices" COMITY_RDMA=$service timeout 240 comity launch -n $ranks -- comity check --backend jaccl "$@"
}

# matrix RANKS: each has one device, all on a switch.
matrix() {
    rows=
    for i in $(seq 0 $(($1 - 1))); do
        row=
        for j in $(seq 0 $(($1 - 1))); do
            if [ $i = $j ]; then row="$row, null"; else row="$row, \"rdma_p$i\""; fi
        done
        rows="$rows, [${row#, }]"
    done
    echo "[${rows#, }]"
}
switched() {
    switch $1
    says job $1 $rdma "$(matrix $1)" "$2" $3
    has "links rdma," "all ok"
}
case_two_ranks_rc() { switched 2 rc "$all"; }
case_two_ranks_uc() { switched 2 uc "$all"; }
case_three_ranks_rc() { switched 3 rc "$some"; }
case_three_ranks_uc() { switched 3 uc "$some"; }
case_four_ranks_rc() { switched 4 rc "$some"; }
case_four_ranks_uc() { switched 4 uc "$some"; }

# Three ranks with a device for each cable, as Macs have them.
cables() {
    cable ab 10.0.1.1 11 ba 10.0.1.2 12
    cable bc 10.0.2.1 21 cb 10.0.2.2 22
}
case_device_for_each_cable() {
    cables
    cable ac 10.0.3.1 31 ca 10.0.3.2 32
    says job 3 $rdma '[[null, "rdma_ab", "rdma_ac"], ["rdma_ba", null, "rdma_bc"], ["rdma_ca", "rdma_cb", null]]' uc $some
    has "links rdma," "all ok"
}
# None between the first and the last, who take what else there is.
case_cable_is_missing() {
    cables
    says job 3 "" '[[null, "rdma_ab", null], ["rdma_ba", null, "rdma_bc"], [null, "rdma_cb", null]]' rc $some
    has "links rdma and" "all ok"
}
case_packets_are_lost() {
    pair
    for end in left right; do tc qdisc add dev $end root netem loss 1%; done
    says job 2 $rdma '[[null, "rdma_left"], ["rdma_right", null]]' rc $some
    has "links rdma," "all ok"
    says tc -s qdisc
    has netem
    grep -q 'dropped [1-9]' /tmp/said
}
# The other ranks say whose fault it was, the launcher how it ended. It gives the others a second to tell, which an emulated processor may not
# always do for one of them. The job would not end for minutes: all operations, types and sizes.
case_rank_is_killed() {
    switch 3
    for try in 1 2 3; do
        job 3 $rdma "$(matrix 3)" rc > /tmp/said 2>&1 &
        until grep -q 'links rdma,' /tmp/said; do sleep 1; done
        sleep 1
        kill -9 $(grep -l COMITY_RANK=1 /proc/[0-9]*/environ | cut -d / -f 3)
        wait
        if grep -q 'comity check: rank ' /tmp/said; then break; fi
    done
    cat /tmp/said
    has "comity check: rank 1 " died "killed by signal 9"
    ! grep 'comity check: rank [02] ' /tmp/said
}

# Messages that an ordinary user's ranks read in each other's memory, under Yama's scopes 0 to 2. Root would pass all of them.
scope=/proc/sys/kernel/yama/ptrace_scope
as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups env "$@"; }

# bench SETTING SETTING OPERATION FLAGS...: two ranks, which say whether messages were read so.
bench() {
    settings="$1 $2"; shift 2
    as_user COMITY_LINKS=shm $settings comity launch -n 2 -- comity bench "$@" --sizes 1M,2M
}

# pulled SCOPE yes|no SETTING PULL OPERATION WORDS: right results, and read so or not; and `comity info` says these words.
pulled() {
    echo "$1" > $scope
    bench $3 "$4" $5 --iters 10 > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    read=no
    grep -q 'where they lay in the memory of other ranks' /tmp/said && read=yes
    as_user ${4:-$3} comity info > /tmp/info
    echo "scope $1, $3 $4: read $read; $(grep -o 'long messages [^;]*' /tmp/info)"
    [ $read = "$2" ] && grep -qF -- "$6" /tmp/info || { cat /tmp/said /tmp/info; exit 1; }
}

# stranger SETTING yes|no: whether a process of the same user that the launcher did not start may open a rank's memory.
stranger() {
    echo 1 > $scope
    : > /tmp/said
    bench $1 COMITY_PULL=65536 all_reduce --budget 20 > /tmp/said 2>&1 &
    until grep -q '^\[0\] *1048576' /tmp/said; do sleep 0.2; done
    rank=$(grep -l COMITY_RANK=1 /proc/[0-9]*/environ | cut -d / -f 3)
    [ -e "/proc/$rank/mem" ] || { echo "rank 1 is not one process: [$rank]"; exit 1; }
    may=no
    as_user sh -c ": < /proc/$rank/mem" 2> /tmp/why && may=yes
    echo "scope 1, $1: a stranger may read: $may"
    # The launcher, not the shell that runs the function.
    kill "$(sed 's/.*) . \([0-9]*\) .*/\1/' "/proc/$rank/stat")"
    wait
    [ ! -e "/proc/$rank" ] || { echo "rank 1 outlived its launcher"; exit 1; }
    [ $may = "$2" ] || { cat /tmp/why /tmp/said; exit 1; }
}

case_yama() {
    # Of an exchange, where nobody has said how messages are to travel; then where it was said.
    lie="long messages of exchanges and sends are read where they lie"
    pulled 0 yes COMITY_TIMEOUT=60 "" all_gather "$lie"
    pulled 1 no COMITY_TIMEOUT=60 "" all_gather "long messages go through rings: Yama's ptrace_scope is 1"
    pulled 1 yes COMITY_PTRACER=ancestor "" all_gather "$lie, of ranks"
    asked=COMITY_PULL=65536
    pulled 0 yes COMITY_PTRACER=ancestor $asked all_reduce ""
    pulled 1 yes COMITY_PTRACER=ancestor $asked all_reduce "Yama's ptrace_scope is 1"
    pulled 1 no COMITY_PTRACER=keep $asked all_reduce ""
    pulled 2 no COMITY_PTRACER=ancestor $asked all_reduce "Yama's ptrace_scope is 2"
    stranger COMITY_PTRACER=ancestor no
    stranger COMITY_PTRACER=any yes
    echo 1 > $scope
}

# far_rank HOST NUMBER: on one of two hosts far from each other.
far_rank() {
    ip netns exec $1 env COMITY_RANK=$2 COMITY_SIZE=2 COMITY_HOST=$1 MASTER_ADDR=10.0.1.1 MASTER_PORT=7400 COMITY_KEY_FILE=/tmp/key \
        COMITY_LINKS=tcp timeout 240 comity check --quick --ops all_reduce,send --dtypes bf16
}
# Over TCP, 50 ms and 1 % of the packets lost each way: many connections, right results, and nobody is taken for dead. An emulated processor has
# enough to do with some operations, each of which waits for the cable many times.
case_far() {
    mkdir -p /run/netns /var
    ln -sfn /run /var/run
    ( umask 077; dd if=/dev/urandom of=/tmp/key bs=32 count=1 2> /dev/null )
    ip netns add a
    ip netns add b
    ip link add name left netns a type veth peer name right netns b
    for end in "a left 10.0.1.1" "b right 10.0.1.2"; do
        set -- $end
        ip -n $1 addr add $3/24 dev $2
        ip -n $1 link set lo up
        ip -n $1 link set $2 up
        ip netns exec $1 tc qdisc add dev $2 root netem delay 50ms loss 1%
    done
    far_rank a 0 > /tmp/a 2>&1 &
    far_rank b 1 > /tmp/b 2>&1
    code=$?
    wait $! || code=1
    ip netns exec a tc -s qdisc show dev left > /tmp/qdisc
    ip netns del a
    ip netns del b
    cat /tmp/a /tmp/b /tmp/qdisc > /tmp/said
    cat /tmp/said
    has "links tcp over 15 connections" "all ok" "qdisc netem" "delay 50ms loss 1%"
    grep -q 'dropped [1-9]' /tmp/qdisc || code=1
    ! grep -E 'fell silent|nothing is heard|died|given up' /tmp/a /tmp/b || code=1
    exit $code
}
