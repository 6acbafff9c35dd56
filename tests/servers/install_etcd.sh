#!/usr/bin/env bash
# etcd from the distribution, for the tests that need a real one; it is not started as a service.
set -eu
command -v etcd >/dev/null && exit 0
echo "installing: etcd-server" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends etcd-server >/dev/null
command -v etcd >/dev/null
