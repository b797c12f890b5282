"""Tokens of an identity provider: real signatures, by keys of every kind."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from starlette.datastructures import Headers

from sandbox_sdk.protocol.errors import Forbidden, InvalidRequest, RuntimeUnavailable, Unauthorized
from sandbox_server.access.tokens import LEEWAY_S, Claims, JwksFile, Tokens
from sandbox_server.api.auth import ApiKeys

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PUBLIC: dict[str, dict[str, Any]] = {
    "RS256": json.loads(RSAAlgorithm.to_jwk(RSA.public_key())),
    "ES256": json.loads(ECAlgorithm.to_jwk(EC.public_key())),
    "EdDSA": json.loads(OKPAlgorithm.to_jwk(ED.public_key())),
}
PRIVATE: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED}
CLAIMS = Claims(issuer="https://login.example.com/", audience="sandboxes")


def jwks(*algorithms: str) -> str:
    names = algorithms or tuple(PUBLIC)
    return json.dumps({"keys": [{**PUBLIC[each], "kid": each, "alg": each} for each in names]})


def token(algorithm: str = "ES256", *, kid: str | None = "", **claims: Any) -> str:
    said = {
        "iss": CLAIMS.issuer, "aud": CLAIMS.audience, "sub": "ann", "tenant": "acme",
        "scope": "openid sandbox:use", "exp": time.time() + 60, **claims,
    }  # fmt: skip
    said = {name: value for name, value in said.items() if value is not None}
    headers = None if kid is None else {"kid": kid or algorithm}
    return jwt.encode(said, PRIVATE[algorithm], algorithm=algorithm, headers=headers)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(jwks())
    return path


async def opened(file: Path, claims: Claims = CLAIMS) -> Tokens:
    tokens = Tokens(JwksFile(file), claims)
    await tokens.look()
    return tokens


@pytest.mark.parametrize("algorithm", PUBLIC)
async def test_each_kind_of_key(file: Path, algorithm: str) -> None:
    tokens = await opened(file)
    for _ in range(2):
        caller = tokens.caller(token(algorithm).encode())
        assert caller is not None
        assert (caller.tenant, caller.key_id) == ("acme", "ann")
        assert caller.scopes == {"use", "read"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": None}, {"exp": time.time() - 3600}, {"nbf": time.time() + 3600}, {"iss": "other"},
        {"iss": None}, {"aud": "other"}, {"aud": None}, {"tenant": None}, {"tenant": "a/b"},
        {"tenant": 7}, {"kid": "unknown"}, {"kid": None},
    ],
)  # fmt: skip
async def test_a_token_that_is_not_for_us(file: Path, wrong: dict[str, Any]) -> None:
    assert (await opened(file)).caller(token(**wrong).encode()) is None


async def test_a_token_that_nobody_signed(file: Path) -> None:
    tokens = await opened(file)
    said = {"tenant": "acme", "scope": "admin", "exp": time.time() + 60}
    unsigned = jwt.encode(said, "", algorithm="none", headers={"kid": "RS256"})
    # The public key as the secret of a symmetric signature.
    confused = jwt.encode(said, "x" * 64, algorithm="HS256", headers={"kid": "RS256"})
    good = token()
    changed = good[:-8] + ("A" * 8 if good[-8:] != "A" * 8 else "B" * 8)
    for each in (unsigned, confused, changed, "a.b.c", "..", "x" * 20_000 + ".."):
        assert tokens.caller(each.encode()) is None


async def test_claims_of_another_shape(file: Path) -> None:
    claims = Claims(tenant="org.name", scopes="https://example.com/roles")
    tokens = await opened(file, claims)
    said: dict[str, Any] = {
        "org": {"name": "globex"},
        "https://example.com/roles": ["sandbox:read", "boss"],
    }
    caller = tokens.caller(token(**said).encode())
    assert caller is not None
    assert (caller.tenant, *caller.scopes) == ("globex", "read")


async def test_one_that_was_known_ends(file: Path) -> None:
    tokens = await opened(file)
    text = token(exp=time.time() - LEEWAY_S + 1).encode()
    assert tokens.caller(text)
    async with asyncio.timeout(30):
        while tokens.caller(text):
            await asyncio.sleep(0.02)


async def test_new_keys_are_taken_up(file: Path) -> None:
    file.write_text(jwks("RS256"))
    async with Tokens(JwksFile(file), CLAIMS) as tokens:
        assert tokens.caller(token("EdDSA").encode()) is None
        file.write_text(jwks("EdDSA"))
        async with asyncio.timeout(30):
            while tokens.caller(token("EdDSA").encode()) is None:
                await asyncio.sleep(0.02)
        assert tokens.caller(token("RS256").encode()) is None
        # Damaged, the last good ones stay.
        file.write_text("{")
        await asyncio.sleep(0)
        assert tokens.caller(token("EdDSA").encode())


async def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    missing = Tokens(JwksFile(tmp_path / "none"), CLAIMS)
    with pytest.raises(RuntimeUnavailable, match="cannot be read"):
        async with missing:
            pass
    for text in ("{", "[]", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AAAA"}]}'):
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(InvalidRequest, match="JWKS"):
            await Tokens(JwksFile(path), CLAIMS).look()


async def test_as_the_key_of_a_request(file: Path) -> None:
    keys = ApiKeys([("small", "fixed")], tokens=await opened(file))
    bearer = Headers({"authorization": f"Bearer {token()}"})
    assert keys.caller(bearer, "use").tenant == "acme"
    assert keys.tenant(Headers({"x-api-key": "fixed"})) == "small"
    with pytest.raises(Forbidden, match="scope admin"):
        keys.caller(bearer, "admin")
    with pytest.raises(Forbidden):
        keys.caller(Headers({"authorization": f"Bearer {token(scope='openid')}"}), "read")
    with pytest.raises(Unauthorized):
        keys.caller(Headers({"authorization": "Bearer a.b.c"}), "read")
