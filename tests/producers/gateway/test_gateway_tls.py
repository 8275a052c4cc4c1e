"""TLS by settings: who is let in, new certificates without a restart, and files that are none."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from producers.gateway.tls import BadTls, Tls, TlsConfig
from tests.producers.gateway.upstreams import gateway

NOWHERE = "127.0.0.1:9"
PLAIN = serialization.NoEncryption()


def written(
    directory: Path, name: str, serial: int = 1, lock: serialization.KeySerializationEncryption = PLAIN
) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    return paths


async def health(address: str, context: ssl.SSLContext) -> int:
    url = f"{address.replace('127.0.0.1', 'localhost')}/healthz"
    async with aiohttp.ClientSession() as http, http.get(url, ssl=context) as response:
        return response.status


async def test_it_speaks_tls_and_lets_in_those_whom_the_ca_signed(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "server")
    client, client_key = written(tmp_path, "client")
    trusting = ssl.create_default_context(cafile=certificate)
    config = TlsConfig(certificate=certificate, key=key)
    async with gateway(tmp_path / "a", "http://127.0.0.1:9", NOWHERE, tls=config) as address:
        assert address.startswith("https://")
        assert await health(address, trusting) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await health(address, ssl.create_default_context())
    config = TlsConfig(certificate=certificate, key=key, client_ca=client)
    async with gateway(tmp_path / "b", "http://127.0.0.1:9", NOWHERE, tls=config) as address:
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await health(address, ssl.create_default_context(cafile=certificate))
        trusting.load_cert_chain(client, client_key)
        assert await health(address, trusting) == 200


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "server", serial=1)
    tls = Tls(TlsConfig(certificate=certificate, key=key))
    assert not tls.reload(), "nothing changed"
    for name in ("pem", "key"):
        (tmp_path / f"server.{name}").write_text("half written")
        assert not tls.reload(), "the old one stays"
    written(tmp_path, "server", serial=2)
    assert tls.reload()
    server, client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificate)
    here = context.wrap_bio(server, client, server_hostname="localhost")
    there = tls.context.wrap_bio(client, server, server_side=True)
    done: set[str] = set()
    while len(done) < 2:
        for name, side in (("here", here), ("there", there)):
            try:
                side.do_handshake()
                done.add(name)
            except ssl.SSLWantReadError:
                pass
    shown = here.getpeercert(binary_form=True)
    assert shown is not None
    assert x509.load_der_x509_certificate(shown).serial_number == 2


def test_a_file_that_is_none_is_one_line_that_names_it(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "server")
    _, another = written(tmp_path, "another")
    _, locked = written(tmp_path, "locked", lock=serialization.BestAvailableEncryption(b"word"))
    text = tmp_path / "text.pem"
    text.write_text("no PEM")
    for config, says in (
        (TlsConfig(certificate=tmp_path / "none", key=key), "none cannot be read"),
        (TlsConfig(certificate=certificate, key=tmp_path), "cannot be read"),
        (TlsConfig(certificate=text, key=key), "no pair of PEM files"),
        (TlsConfig(certificate=certificate, key=another), "no pair of PEM files"),
        (TlsConfig(certificate=tmp_path / "locked.pem", key=locked), "has a password"),
        (TlsConfig(certificate=certificate, key=key, client_ca=text), "holds no certificate"),
    ):
        with pytest.raises(BadTls, match=says) as caught:
            Tls(config)
        assert "\n" not in str(caught.value)
