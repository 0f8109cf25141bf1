# SPDX-License-Identifier: Apache-2.0
"""A server that speaks the Hugging Face Hub's interface, as far as downloads need it: commits, refs, trees in pages,
files with redirects to a second host, tokens, gates, limits of the rate. tests/e2e/test_hub.py holds it against the
package huggingface_hub, so that what it says is what the Hub's own client understands.

The Hub listens on 127.0.0.1 and the place of large files on 127.0.0.2, because huggingface_hub compares host names.
`by hand`: python tests/services/hub_server.py FOLDER ORG/NAME serves a folder as a dataset.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

HUB, CDN = "127.0.0.1", "127.0.0.2"
DATE = "2026-03-04T05:06:07.000Z"
LFS_ENDINGS = (".parquet", ".mp4", ".bin", ".tar", ".safetensors")  # what .gitattributes of the Hub sends to LFS


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer(content: bytes) -> bytes:
    """What Git keeps of a large file."""
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()


@dataclass
class Repo:
    kind: str  # "models", "datasets", "spaces"
    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """A new commit with these files and no others; the branch moves to it."""
        seed = f"{self.id} {len(self.commits)}".encode()
        sha = hashlib.sha1(seed).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        if revision in self.commits:
            return revision
        return self.branches.get(revision) or self.tags.get(revision)

    @property
    def prefix(self) -> str:
        return "" if self.kind == "models" else self.kind + "/"

    @property
    def url(self) -> str:
        return f"hf://{self.prefix}{self.id}"


@dataclass
class Seen:
    host: str
    method: str
    path: str  # with the query
    token: str | None
    range: str | None


class Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = "", **headers: str):
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if code:
            self.headers["X-Error-Code"] = code
        if message:
            self.headers["X-Error-Message"] = message


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body go in two writes
    server: Listener

    def do_GET(self) -> None:
        self.server.hub.serve(self)

    do_HEAD = do_POST = do_GET

    def log_message(self, *_args: object) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        """`length`: announced, when it is not that of `body`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, hub: Hub, tls: ssl.SSLContext | None):
        super().__init__((host, 0), Handler)
        self.hub = hub
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_args: object) -> None:  # a client that went away
        pass


class Hub:
    def __init__(self, tls_folder: Path | None = None):
        self.repos: list[Repo] = []
        self.tokens: set[str] = set()  # that are valid
        self.granted: set[str] = set()  # that may read gated repositories
        self.page_size = 1000
        self.seen: list[Seen] = []
        # Asked first for each request; an answer of True: it was served.
        self.trouble: Callable[[Handler, Seen], object] = lambda _handler, _seen: None
        self.bend: Callable[[str, bytes], bytes] = lambda _path, content: content  # what the second host sends
        self.has_ranges = True
        self.ca_file: Path | None = None
        tls = self.make_tls(tls_folder) if tls_folder else None
        self.scheme = "https" if tls else "http"
        self.hub, self.cdn = Listener(HUB, self, tls), Listener(CDN, self, tls)

    def make_tls(self, folder: Path) -> ssl.SSLContext:
        key, self.ca_file = folder / "key.pem", folder / "certificate.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-keyout", key, "-out", self.ca_file, "-days", "2", "-subj", "/CN=hub"),
                *("-addext", f"subjectAltName=IP:{HUB},IP:{CDN}"),
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca_file, key)
        return context

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://{HUB}:{self.hub.server_port}"

    @property
    def elsewhere(self) -> str:
        return f"{self.scheme}://{CDN}:{self.cdn.server_port}"

    @property
    def env(self) -> dict[str, str]:
        """The environment with which a program reaches this Hub and no other, without a token."""
        certificate = {"SSL_CERT_FILE": str(self.ca_file)} if self.ca_file else {}
        return {"HF_ENDPOINT": self.endpoint, "HF_HOME": "/nonexistent", "NO_PROXY": "*", "no_proxy": "*"} | certificate

    def add(self, id: str, files: dict[str, bytes], kind: str = "datasets", **options: bool) -> Repo:
        repo = Repo(kind, id, **options)
        repo.commit(files)
        self.repos.append(repo)
        return repo

    def close(self) -> None:
        for listener in (self.hub, self.cdn):
            listener.shutdown()
            listener.server_close()

    def paths(self, host: str = HUB) -> list[str]:
        return [seen.path for seen in self.seen if seen.host == host]

    # ---- answers

    def serve(self, handler: Handler) -> None:
        host = CDN if handler.server is self.cdn else HUB
        token = handler.headers.get("Authorization", "").removeprefix("Bearer ") or None
        seen = Seen(host, handler.command, handler.path, token, handler.headers.get("Range"))
        self.seen.append(seen)
        if handler.command == "POST":
            handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            if self.trouble(handler, seen):
                return
            try:
                self.serve_blob(handler) if host == CDN else self.serve_hub(handler, token)
            except Refusal as refusal:
                handler.reply(refusal.status, b'{"error": "refused"}', **refusal.headers)

    def serve_hub(self, handler: Handler, token: str | None) -> None:
        if token is not None and token not in self.tokens:
            raise Refusal(401, message="Invalid credentials in Authorization header")
        url = urlsplit(handler.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if parts[0] != "api":
            return self.serve_file(handler, parts, token)
        if parts[1] == "resolve-cache":  # where the Hub redirects to for small files
            repo = self.find(parts[2], "/".join(parts[3:5]), token)
            return self.serve_small(handler, repo, parts[5], "/".join(parts[6:]))
        kind = parts[1]
        if kind == "whoami-v2":
            if token is None:
                raise Refusal(401)
            return self.send_json(handler, {"type": "user", "name": "tester"})
        if kind not in ("models", "datasets", "spaces"):
            raise Refusal(404)
        if len(parts) == 2:
            return self.send_json(handler, self.search(kind, query, token))
        repo = self.find(kind, "/".join(parts[2:4]), token)
        what, rest = (parts[4], parts[5:]) if len(parts) > 4 else ("revision", ["main"])
        if what == "refs":
            return self.send_json(handler, self.refs(repo))
        sha = self.commit_of(repo, rest[0] if rest else "main")
        if what == "revision":
            return self.send_json(handler, self.info(repo, sha, url.query))
        if what == "tree":
            return self.serve_tree(handler, repo, sha, "/".join(rest[1:]), query)
        raise Refusal(404)

    def find(self, kind: str, id: str, token: str | None) -> Repo:
        for repo in self.repos:
            if repo.kind == kind and repo.id == id and (token or not repo.private):
                return repo
        if token is None:  # the Hub does not say which names exist
            raise Refusal(401, "RepoNotFound", "Invalid username or password.")
        raise Refusal(404, "RepoNotFound", "Repository not found")

    def commit_of(self, repo: Repo, revision: str) -> str:
        sha = repo.resolve(revision)
        if sha is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    def check_gate(self, repo: Repo, token: str | None) -> None:
        if repo.gated and token not in self.granted:
            raise Refusal(401 if token is None else 403, "GatedRepo", f"Access to dataset {repo.id} is restricted.")

    @staticmethod
    def send_json(handler: Handler, answer: object, **headers: str) -> None:
        handler.reply(200, json.dumps(answer).encode(), Content_Type="application/json", **headers)

    def search(self, kind: str, query: dict[str, str], token: str | None) -> list[dict]:
        author, text = query.get("author"), query.get("search", "").lower()
        return [
            {"id": repo.id}
            for repo in self.repos
            if repo.kind == kind
            and (token or not repo.private)
            and author in (None, repo.id.split("/")[0])
            and text in repo.id.lower()
        ]

    @staticmethod
    def refs(repo: Repo) -> dict:
        def listed(refs: dict[str, str], folder: str) -> list[dict]:
            return [{"name": n, "ref": f"refs/{folder}/{n}", "targetCommit": sha} for n, sha in refs.items()]

        return {"branches": listed(repo.branches, "heads"), "converts": [], "tags": listed(repo.tags, "tags")}

    @staticmethod
    def info(repo: Repo, sha: str, query: str) -> dict:
        answer = {"_id": "0", "id": repo.id, "sha": sha, "lastModified": DATE, "private": repo.private, "tags": []}
        wanted = parse_qs(query).get("expand")
        if wanted:
            return {name: answer[name] for name in ("_id", "id", *wanted)}
        return answer | {"siblings": [{"rfilename": path} for path in repo.commits[sha]]}

    def serve_tree(self, handler: Handler, repo: Repo, sha: str, folder: str, query: dict[str, str]) -> None:
        recursive, expand = query.get("recursive") == "true", query.get("expand") == "true"
        below = {p: c for p, c in repo.commits[sha].items() if not folder or p.startswith(folder + "/")}
        if not below and folder:
            raise Refusal(404, "EntryNotFound", f"{folder} does not exist on {sha}")
        depth = folder.count("/") + 1 if folder else 0
        folders = {"/".join(p.split("/")[:n]) for p in below for n in range(depth + 1, p.count("/") + 1)}
        entries = [{"type": "directory", "path": path, "size": 0, "oid": git_sha1(path.encode())} for path in folders]
        entries += [self.entry(path, content) for path, content in below.items()]
        if not recursive:
            entries = [each for each in entries if each["path"].count("/") == depth]
        entries.sort(key=lambda each: (each["type"], each["path"].count("/"), each["path"]))  # as no sort by path is
        if expand:
            for each in entries:
                each["lastCommit"] = {"id": sha, "title": "a commit", "date": DATE}
        begin = int(query.get("cursor", 0))
        page, headers = entries[begin : begin + self.page_size], {}
        if begin + self.page_size < len(entries):
            flags = f"recursive={str(recursive).lower()}&expand={str(expand).lower()}"
            path = urlsplit(handler.path).path
            headers["Link"] = f'<{self.endpoint}{path}?{flags}&cursor={begin + self.page_size}>; rel="next"'
        self.send_json(handler, page, **headers)

    @staticmethod
    def is_large(path: str, content: bytes) -> bool:
        return path.endswith(LFS_ENDINGS) or len(content) > 10_000_000

    def entry(self, path: str, content: bytes) -> dict:
        kept = pointer(content) if self.is_large(path, content) else content
        found = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(kept)}
        if kept is not content:
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"oid": digest, "size": len(content), "pointerSize": len(kept)}
            found["xetHash"] = digest[::-1]
        return found

    def serve_file(self, handler: Handler, parts: list[str], token: str | None) -> None:
        kind = parts.pop(0) if parts[0] in ("datasets", "spaces") else "models"
        if len(parts) < 5 or parts[2] != "resolve":
            raise Refusal(404)
        repo = self.find(kind, "/".join(parts[:2]), token)
        self.check_gate(repo, token)
        sha, path = self.commit_of(repo, parts[3]), "/".join(parts[4:])
        content = repo.commits[sha].get(path)
        if content is None:
            raise Refusal(404, "EntryNotFound", "Entry not found", X_Repo_Commit=sha)
        headers = {"X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
        if not self.is_large(path, content):
            place = f"/api/resolve-cache/{repo.kind}/{repo.id}/{sha}/{quote(path)}"
            return handler.reply(307, Location=place, **headers)
        place = f"{self.elsewhere}/{repo.prefix}{repo.id}/{sha}/{quote(path)}?Signature=0123"
        digest = hashlib.sha256(content).hexdigest()
        # Of Xet, which a client may leave aside: the redirect leads to the whole file.
        headers |= {"X_Xet_Hash": digest[::-1], "Link": f'<{self.endpoint}/xet-token>; rel="xet-auth"'}
        headers |= {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(content)), "Location": place}
        handler.reply(302, f"Found. Redirecting to {place}".encode(), **headers)

    def serve_small(self, handler: Handler, repo: Repo, sha: str, path: str) -> None:
        content = repo.commits[sha][path]
        headers = {"X_Repo_Commit": sha, "Accept_Ranges": "bytes", "ETag": f'"{git_sha1(content)}"'}
        self.send_range(handler, content, **headers)

    def serve_blob(self, handler: Handler) -> None:
        url = urlsplit(handler.path)
        if url.query != "Signature=0123":
            raise Refusal(403)
        parts = unquote(url.path).strip("/").split("/")
        kind = parts.pop(0) if parts[0] in ("datasets", "spaces") else "models"
        for repo in self.repos:
            if repo.kind == kind and repo.id == "/".join(parts[:2]):
                path = "/".join(parts[3:])
                content = self.bend(path, repo.commits[parts[2]][path])
                return self.send_range(handler, content, ETag='"of-the-cdn"')
        raise Refusal(404)

    def send_range(self, handler: Handler, content: bytes, **headers: str) -> None:
        wanted = handler.headers.get("Range") if self.has_ranges else None
        if not wanted:
            return handler.reply(200, content, **headers)
        first, last = wanted.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last or len(content)), len(content) - 1) + 1
        if begin >= len(content):
            return handler.reply(416, Content_Range=f"bytes */{len(content)}")
        headers["Content_Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return handler.reply(206, content[begin:end], **headers)


@contextlib.contextmanager
def running(tls_folder: Path | None = None) -> Iterator[Hub]:
    hub = Hub(tls_folder)
    try:
        yield hub
    finally:
        hub.close()


def main() -> None:
    folder, id = Path(sys.argv[1]), sys.argv[2]
    with running() as hub:
        hub.add(id, {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
        print(f"export HF_ENDPOINT={hub.endpoint}  # millrace ls hf://datasets/{id} -r", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
