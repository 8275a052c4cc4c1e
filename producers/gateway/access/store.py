"""Keys in Postgres: reading all of them for a gateway, and what the command line does with them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import SQLAlchemyError

from producers.gateway.access.key_form import digest_of, new_key, new_key_id, tenant_of
from producers.gateway.access.ring import Grant, KeyList, KeysAway
from schemas.tables import gateway_keys, tenants

_UNDEFINED_TABLE = "42P01"


def read_keys(engine: Engine) -> KeyList:
    """Every key that is not revoked.

    Raises:
        KeysAway: the database does not answer.
    """
    k = gateway_keys.c
    query = (
        select(k.digest, k.tenant, tenants.c.recorded, k.expires_at)
        .join(tenants, tenants.c.tenant == k.tenant)
        .where(k.revoked_at.is_(None))
        .order_by(k.key_id)
    )
    try:
        with engine.connect() as connection:
            rows = connection.execute(query).all()
            exist = connection.scalar(select(select(k.key_id).exists()))
    except SQLAlchemyError as err:
        if getattr(getattr(err, "orig", None), "sqlstate", None) == _UNDEFINED_TABLE:
            return KeyList()  # a database from before there were keys, so nobody made one
        raise KeysAway(type(getattr(err, "orig", None) or err).__name__) from err
    grants = (
        Grant(
            digest=row.digest.hex(),
            tenant=row.tenant,
            recorded=row.recorded,
            expires_at=row.expires_at.timestamp() if row.expires_at is not None else None,
        )
        for row in rows
    )
    return KeyList(tuple(grants), bool(exist))


def create_key(
    connection: Connection, tenant: str, name: str | None, expires_at: datetime | None, *, record: bool | None = None
) -> tuple[str, str]:
    """A new key of `tenant`, which is made where it is new: its id, and the key, which is kept nowhere. `record` sets
    whether the tenant's requests are recorded; None leaves it as it is, at first yes.

    Raises:
        ValueError: no name for a tenant.
    """
    set_tenant(connection, tenant, record=record)
    key_id, key = new_key_id(), new_key()
    row = {"key_id": key_id, "tenant": tenant, "name": name, "digest": digest_of(key), "expires_at": expires_at}
    connection.execute(insert(gateway_keys).values(row))
    return key_id, key


def set_tenant(connection: Connection, tenant: str, *, record: bool | None) -> None:
    """Make the tenant where it is new, and set whether its requests are recorded; None leaves that as it is.

    Raises:
        ValueError: no name for a tenant.
    """
    values: dict[str, Any] = {"tenant": tenant_of(tenant)}
    if record is None:
        connection.execute(upsert(tenants).values(values).on_conflict_do_nothing())
        return
    values["recorded"] = record
    connection.execute(
        upsert(tenants).values(values).on_conflict_do_update(index_elements=["tenant"], set_={"recorded": record})
    )


def tenant_exists(connection: Connection, tenant: str) -> bool:
    """Whether it was ever named."""
    return connection.scalar(select(tenants.c.tenant).where(tenants.c.tenant == tenant)) is not None


def revoke_key(connection: Connection, key_id: str) -> bool:
    """Revoke it; False where there is none of this id. Again is the same."""
    found = connection.execute(
        update(gateway_keys)
        .where(gateway_keys.c.key_id == key_id)
        .values(revoked_at=func.coalesce(gateway_keys.c.revoked_at, func.now()))
    )
    return bool(found.rowcount)


def list_keys(connection: Connection) -> list[Row[Any]]:
    """key_id, tenant, name, recorded, created_at, expires_at, revoked_at, and state: valid, expired or revoked."""
    k = gateway_keys.c
    query = (
        select(
            k.key_id,
            k.tenant,
            k.name,
            tenants.c.recorded,
            k.created_at,
            k.expires_at,
            k.revoked_at,
            (k.expires_at <= func.now()).label("expired"),
        )
        .join(tenants, tenants.c.tenant == k.tenant)
        .order_by(k.tenant, k.created_at, k.key_id)
    )
    return list(connection.execute(query).all())
