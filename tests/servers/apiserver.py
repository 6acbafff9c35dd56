"""A real Kubernetes API server on loopback, over a real etcd, for tests and benches; ended by pid.

The program is built by `build_apiserver.sh`. There is no kubelet and no controller: Lease objects,
roles and service accounts are all there is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from bench.etcd import EtcdCluster
from bench.ports import free_ports

READY_S = 60.0
ADMIN_TOKEN = "token-of-the-administrator"
NAMESPACE = "tenure-test"
BUILD = Path(__file__).with_name("build_apiserver.sh")
MANIFEST = Path(__file__).parents[2] / "examples" / "kubernetes" / "lease-rbac.yaml"


def program() -> str:
    """Path of the API server; raises RuntimeError, with the mend, when it is not built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "tenure" / "kube-apiserver" / "kube-apiserver"
    if not built.is_file():
        raise RuntimeError(f"there is no API server: run {BUILD}, or `make test-kubernetes`")
    return str(built)


class ApiServer:
    """One API server in `folder`, over an etcd of its own."""

    def __init__(self, folder: Path) -> None:
        self.etcd = EtcdCluster(folder)
        self.process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)
        self.url = f"https://127.0.0.1:{self.port}"
        self._folder = folder
        self._log = folder / "apiserver.log"
        self.ca_file = folder / "certs" / "apiserver.crt"
        self.admin_token_file = self.token_file("admin", ADMIN_TOKEN)

    def start(self) -> ApiServer:
        """Start both; returns when the server is ready, and has namespace and role."""
        key = self._folder / "service-accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        tokens = self._folder / "tokens.csv"
        tokens.write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
        self.etcd.start()
        self._start(key, tokens)
        self.create_namespace(NAMESPACE)
        return self

    def _start(self, key: Path, tokens: Path) -> None:
        self._command = [
            program(),
            f"--etcd-servers={self.etcd.servers[0].url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self._folder / 'certs'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
            "--feature-gates=APIPriorityAndFairness=false",
        ]
        self._launch()

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + READY_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"the API server is not ready: {self._log.read_text()[-2000:]}")
            time.sleep(0.1)

    def restart(self) -> None:
        """Kill it and start it again; what etcd has stored is there."""
        self._kill()
        self._launch()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """End both, by pid."""
        self._kill()
        self.etcd.stop()

    def _kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            self.process = None

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/readyz", raw=True)[0] == 200
        except OSError:
            return False

    # -- as the administrator

    def call(
        self, method: str, path: str, body: object = None, *, raw: bool = False
    ) -> tuple[int, Any]:
        """Status and body."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {ADMIN_TOKEN}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=10.0, context=context) as answer:
                text = answer.read()
                return answer.status, text if raw else json.loads(text)
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, text if raw else json.loads(text)

    def create_namespace(self, name: str) -> None:
        """With what `examples/kubernetes/lease-rbac.yaml` says."""
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        places = {
            "ServiceAccount": f"/api/v1/namespaces/{name}/serviceaccounts",
            "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/roles",
            "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings",
        }
        for document in yaml.safe_load_all(MANIFEST.read_text()):
            if document["kind"] == "RoleBinding":
                # kubectl fills this in from --namespace.
                document["subjects"][0]["namespace"] = name
            self.must("POST", places[document["kind"]], document)

    def must(self, method: str, path: str, body: object = None) -> Any:
        """The body of an answer that is no error."""
        status, answer = self.call(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer}")
        return answer

    def service_token(self, namespace: str = NAMESPACE, account: str = "tenure") -> str:
        """A token as a pod of this account has one."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token: str = self.must("POST", path, body)["status"]["token"]
        return token

    def token_file(self, name: str, token: str) -> Path:
        """A file with this token, replaced in one step as a kubelet does it."""
        file = self._folder / f"{name}.token"
        new = file.with_suffix(".new")
        new.write_text(token)
        new.replace(file)
        return file

    def store_url(self, token_file: Path, namespace: str = NAMESPACE) -> str:
        """For `lease.from_url`."""
        return (
            f"kubernetes://{namespace}?server={self.url}&token_file={token_file}"
            f"&ca_file={self.ca_file}"
        )

    def __enter__(self) -> ApiServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
