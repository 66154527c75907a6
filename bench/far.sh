# all_reduce of 16 MiB between two hosts far from each other: over one TCP connection, and over as many as a far pair has by itself. In the guest of
# `cargo xtask rdma-vm`, whose kernel has netem:
#
#     cargo xtask rdma-vm --file target/release/comity --limit 900 "$(cat bench/far.sh)"
mkdir -p /run/netns /var
ln -sfn /run /var/run
( umask 077; dd if=/dev/urandom of=/tmp/key bs=32 count=1 2> /dev/null )
port=7400

# host NAME DEVICE ADDRESS DELAY LOSS: an end of the cable.
host() {
    ip -n "$1" addr add "$3/24" dev "$2"
    ip -n "$1" link set lo up
    # Packets as a network card sends them: else each that is lost takes up to 45 with it.
    ip -n "$1" link set "$2" gso_max_segs 1 up
    ip netns exec "$1" tc qdisc add dev "$2" root netem delay "$4" loss "$5" limit 100000
}

# rank HOST NUMBER SETTINGS
rank() {
    ip netns exec "$1" env COMITY_RANK="$2" COMITY_SIZE=2 COMITY_HOST="$1" MASTER_ADDR=10.0.1.1 MASTER_PORT=$port \
        COMITY_KEY_FILE=/tmp/key COMITY_LINKS=tcp COMITY_TIMEOUT=300 $3 \
        timeout 250 comity bench all_reduce --sizes "${SIZES:-16M}" --iters "${ITERS:-5}" --warmup "${WARMUP:-1}" > "/tmp/$1" 2>&1
}

# far DELAY LOSS SETTINGS: a job over a new cable.
far() {
    ip netns add a
    ip netns add b
    ip link add name left netns a type veth peer name right netns b
    host a left 10.0.1.1 "$1" "$2"
    host b right 10.0.1.2 "$1" "$2"
    port=$((port + 1))
    echo "== delay $1, loss $2 at each end; $3"
    rank a 0 "$3" &
    rank b 1 "$3"
    wait
    cat /tmp/a
    # What both systems hold in buffers of TCP, in pages, at most: they are looked at while the job runs.
    ip netns exec a tc -s qdisc show dev left | grep dropped
    ip netns del a
    ip netns del b
}

for delay in 25ms 50ms; do
    for settings in COMITY_CONNECTIONS=1 COMITY_LINKS=tcp "COMITY_CONNECTIONS=1 COMITY_SECURE=data" COMITY_SECURE=data; do
        far $delay 0.1% "$settings"
    done
done
