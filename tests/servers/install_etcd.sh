#!/usr/bin/env bash
# etcd from the distribution, for the tests that need a real one, and PostgreSQL for an example.
# Neither is started here: the tests start their own.
set -eu
missing=""
command -v etcd >/dev/null || missing="$missing etcd-server"
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || missing="$missing postgresql"
[ -z "$missing" ] && exit 0
echo "installing:$missing" >&2
apt-get update -qq
# Words on purpose: one argument per package.
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
command -v etcd >/dev/null
