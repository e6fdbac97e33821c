"""UpdateFeatures (key 57): the level of each feature is fixed, so the only update that can succeed changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.off_loop import answer_in_thread
from moldau.broker.handlers.api_versions import FEATURES
from moldau.errors import ErrorCode
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasThreads, Protocol):
    """What these handlers use."""


_UPGRADE_TYPES = range(1, 4)  # upgrade, safe downgrade, unsafe downgrade
_NO_RESULTS_VERSION_MIN = 2


def handle_update_features(broker: Broker, context: RequestContext, request: Any) -> Any:
    return answer_in_thread(broker, context, lambda: _respond(context, request))


def _respond(context: RequestContext, request: Any) -> Any:
    schema = context.schema
    refusal = next(filter(None, map(_refusal, request.feature_updates)), None)
    code = error(ErrorCode.NONE if refusal is None else ErrorCode.INVALID_UPDATE_VERSION)
    results = {}
    if context.version < _NO_RESULTS_VERSION_MIN:
        # As in Kafka, features have results of their own only where all updates succeed.
        names = () if refusal else tuple(update.feature for update in request.feature_updates)
        results["results"] = tuple(
            schema.UpdatableFeatureResult(feature=name, error_code=code, error_message=None) for name in names
        )
    return schema.UpdateFeaturesResponse(throttle_time=ms(0), error_code=code, error_message=refusal, **results)


def _refusal(update: Any) -> str | None:
    level = FEATURES.get(update.feature)
    upgrade_type = getattr(update, "upgrade_type", 1)
    if upgrade_type not in _UPGRADE_TYPES:
        reason = f"There is no upgrade type {upgrade_type}."
    elif update.max_version_level < 0:
        reason = "A feature version cannot be less than 0."
    elif level is None:
        reason = f"This broker does not support the feature; it has {', '.join(FEATURES)}."
    elif update.max_version_level != level:
        reason = f"This broker supports version {level} only."
    else:
        return None
    return f"No feature was updated. Invalid version {update.max_version_level} for feature {update.feature}. {reason}"
