"""What the application holds, by name: one place, so that no handler guesses."""

from __future__ import annotations

from aiohttp import web

from producers.gateway.config import GatewayConfig
from producers.gateway.conversations import Conversations
from producers.gateway.desk import Desk
from producers.gateway.idle import IdleConnections
from producers.gateway.metrics import Metrics
from producers.gateway.recorder import Recorder
from producers.gateway.upstream import Upstream

CONFIG = web.AppKey("config", GatewayConfig)
UPSTREAM = web.AppKey("upstream", Upstream)
RECORDER = web.AppKey("recorder", Recorder)
DESK = web.AppKey("desk", Desk)
METRICS = web.AppKey("metrics", Metrics)
CONVERSATIONS = web.AppKey("conversations", Conversations)
IDLE = web.AppKey("idle", IdleConnections)
COUNTS: web.AppKey[dict[str, int]] = web.AppKey("counts", dict)
