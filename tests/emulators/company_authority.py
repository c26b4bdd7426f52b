"""A company's own authority, which signs the certificates of servers."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CompanyAuthority:
    """An authority with its files in `folder`."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """The file with the authority's certificate."""
        return self.folder / "authority.pem"

    def sign(self, host: str) -> Path:
        """Return a file with a new key and a signed certificate for a host."""
        key, request = self.folder / f"{host}.key", self.folder / f"{host}.csr"
        signed, names = self.folder / f"{host}.pem", self.folder / f"{host}.names"
        kind = "IP" if host[0].isdigit() else "DNS"
        names.write_text(f"subjectAltName={kind}:{host}\n")
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request)
        own = ("-CA", self.certificate, "-CAkey", self.folder / "authority.key", "-CAcreateserial")
        files = ("-in", request, "-extfile", names, "-out", signed)
        _openssl("x509", "-req", "-days", "2", *own, *files)
        both = self.folder / f"{host}.both.pem"
        both.write_text(key.read_text() + signed.read_text())
        return both


def create_authority(folder: Path) -> CompanyAuthority:
    """Create an authority with a new key in the new folder `folder`."""
    folder.mkdir()
    authority = CompanyAuthority(folder)
    files = ("-keyout", folder / "authority.key", "-out", authority.certificate)
    constraint = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *constraint)
    return authority


def _openssl(command: str, *words: str | Path) -> None:
    subject = ("-subj", "/O=Company/CN=Company authority") if command == "req" else ()
    subprocess.run(["openssl", command, *words, *subject], check=True, capture_output=True)
