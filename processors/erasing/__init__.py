"""Erasing a session: text and tokens go, ids, digests, counts and lineage stay, so that the ledger still balances."""
