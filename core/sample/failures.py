"""Why a row cannot be sampled, in place of its token."""

from __future__ import annotations

FORBIDDEN, NOT_FINITE = -1, -2
FAILURES = {
    FORBIDDEN: "every token is forbidden by allowed_token_ids, logit_bias, bad_words or min_tokens",
    NOT_FINITE: "the model's logits are not finite numbers",
}
