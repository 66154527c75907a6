# Ray's actors over Comity: a Ray of its own on this machine, in namespaces. Ray listens on every address and starts some ten processes: so its
# network is one of loopback alone, and what is left of it ends with the namespace of its processes. `python/suites/ray_suite.py` has the cases.
python=$BUILT/ray/bin/python
"$python" python/tests/without_cuda.py
"$python" -c "import ray.util.collective, torch"
"$TOOLBOX" step package ray debug
# HOME is a short name: Ray makes Unix sockets deep in it, and keeps a token there. It gives its own start half a minute, which a busy machine
# exceeds. The shell is the first process there: Ray takes a parent with that number for one that has died.
HOME=$WORK RAY_raylet_start_wait_time_s=300 timeout 1800 unshare --net --pid --fork --kill-child --mount-proc \
    sh -c 'ip link set lo up && "$@"; exit $?' sh "$python" python/suites/ray_suite.py --folder "$WORK"
