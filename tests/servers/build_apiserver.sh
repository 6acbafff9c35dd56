#!/usr/bin/env bash
# A real kube-apiserver for the tests: built once from the source package of Debian 12, kept outside
# the clone. Prints the path of the program. About five minutes on two cores, 2 GB while it builds.
#
#   tests/servers/build_apiserver.sh [FOLDER]      (default: ~/.cache/tenure/kube-apiserver)
#
# Needs root (it installs a Go compiler) and a Debian 12 whose sources can be reached.
set -euo pipefail

VERSION=1.20.5+really1.20.2-1.1+deb12u1
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tenure/kube-apiserver}")
program=$folder/kube-apiserver
if [ -x "$program" ]; then
  echo "$program"
  exit 0
fi

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9 # two test runs at once build it once
if [ -x "$program" ]; then
  echo "$program"
  exit 0
fi

say() { echo "build_apiserver: $*" >&2; }
log=$folder/build.log
trap 'status=$?; [ $status -eq 0 ] || { say "failed; the end of $log:"; tail -n 20 "$log" >&2; }' EXIT

say "installing the compiler"
{
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    golang-1.19-go rsync make dpkg-dev
} >"$log" 2>&1

# An apt of our own, with the index of sources: that of the machine stays as it is.
apt_folder=$folder/apt
mkdir -p "$apt_folder/state/lists/partial" "$apt_folder/cache/archives/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
: >"$apt_folder/sources.list"
for suite in bookworm bookworm-updates; do
  for kind in deb deb-src; do
    echo "$kind [signed-by=$keyring] $mirror $suite main" >>"$apt_folder/sources.list"
  done
done
cat >"$apt_folder/apt.conf" <<CONF
Dir::State "$apt_folder/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$apt_folder/cache";
Dir::Etc::sourcelist "$apt_folder/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$apt_folder/apt.conf

say "fetching the sources"
cd "$folder"
{
  apt-get update -qq
  rm -rf source reflect2
  apt-get source -qq --download-only "kubernetes=$VERSION"
  dpkg-source --no-check -x kubernetes_*.dsc source
  # The reflect2 inside panics under Go 1.18 and later when it decodes the token of a service
  # account; the one that Debian packages by itself does not.
  apt-get download -qq golang-github-modern-go-reflect2-dev
  dpkg -x golang-github-modern-go-reflect2-dev_*.deb reflect2
} >>"$log" 2>&1
vendored=source/vendor/github.com/modern-go/reflect2
packaged=reflect2/usr/share/gocode/src/github.com/modern-go/reflect2
rm -f "$vendored"/*.go "$vendored"/*.s
cp "$packaged"/*.go "$packaged"/*.s "$vendored/"
rm -f "$vendored"/*_test.go

say "building: about five minutes"
export PATH=/usr/lib/go-1.19/bin:$PATH
export HOME=$folder/home GOPATH=$folder/source/.go GOCACHE=$folder/go-cache
export CGO_ENABLED=0 GOPROXY=off GO111MODULE=off GOFLAGS='' GOTOOLCHAIN=local
mkdir -p "$HOME" source/.go/src/k8s.io
ln -sfn ../../.. source/.go/src/k8s.io/kubernetes
cd source/.go/src/k8s.io/kubernetes
make gen_openapi >>"$log" 2>&1 # of what is generated, the only part that the package lacks
cd "$folder/source/.go/src/k8s.io/kubernetes"
stamp=k8s.io/kubernetes/vendor/k8s.io/component-base/version
go build -o "$folder/built" \
  -ldflags "-s -w -X $stamp.gitVersion=v1.20.2 -X $stamp.gitMajor=1 -X $stamp.gitMinor=20" \
  k8s.io/kubernetes/cmd/kube-apiserver >>"$log" 2>&1

cd "$folder"
mv built kube-apiserver
rm -rf source reflect2 apt home go-cache ./*.deb ./*.dsc ./*.tar.*
say "done: $("$program" --version)"
echo "$program"
