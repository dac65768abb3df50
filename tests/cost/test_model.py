"""Work, and what it costs. Nothing here knows which kinds there are."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gnnjit.cost.defaults import default_model
from gnnjit.cost.kinds import INDEX, KINDS, NAMES, SPAN
from gnnjit.cost.model import CostModel, Work
from gnnjit.errors import CostError, GnnjitError

KIND, FEATURES = next((k, f) for k, f in KINDS.items() if len(f) > 1)
FIRST = FEATURES[0]
CPU = "shipped: two CPU cores, run `gnnjit calibrate` for this machine's"
GPU = "shipped: derived for an H200, run `gnnjit calibrate` for this machine's"
RAMP = CostModel(np.arange(1.0, len(NAMES) + 1))


def test_the_flat_view_has_every_feature_once():
    assert [name for kind in KINDS for name in NAMES[SPAN[kind]]] == list(NAMES)
    assert [NAMES[i] for i in INDEX.values()] == list(NAMES)
    assert all(KINDS.values())


def test_work_of_a_kind():
    work = Work.of(KIND, **{FIRST: 3})
    assert work[KIND].tolist() == [3.0] + [0.0] * (len(FEATURES) - 1)
    assert work.vector[INDEX[KIND, FIRST]] == work.vector.sum() == 3.0
    assert list(work) == [KIND]
    assert repr(work) == f"Work({KIND}.{FIRST}=3)"


def test_work_adds_and_repeats():
    whole = Work(RAMP.weights)
    parts = [Work.of(kind, **dict(zip(KINDS[kind], whole[kind], strict=True))) for kind in KINDS]
    assert sum(parts, Work()) == whole
    assert hash(sum(parts, Work())) == hash(whole)
    assert list(whole) == list(KINDS)
    assert whole * 2 == 2 * whole == whole + whole
    assert whole != whole * 2
    assert not Work()


def test_work_is_immutable():
    with pytest.raises(ValueError, match="read-only"):
        Work().vector[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        Work.of(KIND)[KIND][0] = 1


def test_an_unknown_kind_is_an_error_never_free():
    message = f"unknown kind of operation 'fft', expected one of {', '.join(KINDS)}: nothing is "
    with pytest.raises(CostError, match=re.escape(message)):
        Work.of("fft", flops=1)
    with pytest.raises(CostError, match=re.escape(message)):
        Work()["fft"]
    assert issubclass(CostError, GnnjitError)


def test_an_unknown_feature_is_an_error():
    message = f"{KIND} has no feature 'flop', expected one of {', '.join(FEATURES)}"
    with pytest.raises(CostError, match=re.escape(message)):
        Work.of(KIND, flop=1)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_features_are_finite_and_not_negative(value):
    message = f"the feature {KIND}.{FIRST} is {value}, expected a finite number >= 0"
    with pytest.raises(CostError, match=re.escape(message)):
        Work.of(KIND, **{FIRST: value})


def test_seconds_are_linear():
    work = Work.of(KIND, **{FIRST: 3}) + Work.of(KIND, **{FEATURES[1]: 2})
    at = INDEX[KIND, FIRST]
    assert RAMP.seconds(work) == 3 * (at + 1) + 2 * (at + 2)
    assert RAMP.seconds(work * 4) == 4 * RAMP.seconds(work)
    assert RAMP.by_kind(work) == {KIND: RAMP.seconds(work)}
    everything = Work(np.ones(len(NAMES)))
    assert list(RAMP.by_kind(everything)) == list(KINDS)
    assert sum(RAMP.by_kind(everything).values()) == RAMP.seconds(everything)


def test_models_go_through_json():
    again = CostModel.from_json(RAMP.to_json(), "a file")
    assert again == RAMP
    assert hash(again) == hash(RAMP)
    assert again.source == "a file"
    assert CostModel(RAMP.weights * 2) != RAMP


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1.0, f"the weight {KIND}.{FIRST} is -1.0, expected a finite number >= 0"),
        (float("nan"), f"the weight {KIND}.{FIRST} is nan, expected a finite number >= 0"),
        ("1", f"the weight {KIND}.{FIRST} is '1', expected a number"),
        (None, f"the weight {KIND}.{FIRST} is None, expected a number"),
    ],
)
def test_wrong_weights(value, message):
    data = RAMP.to_json()
    data[KIND][FIRST] = value
    with pytest.raises(CostError, match=re.escape(message)):
        CostModel.from_json(data)


def test_missing_and_unknown_weights():
    data = RAMP.to_json()
    del data[KIND][FIRST]
    with pytest.raises(CostError, match=f"the weight {KIND}.{FIRST} is missing"):
        CostModel.from_json(data)
    with pytest.raises(CostError, match=r"the weight fft\.flops is unknown"):
        CostModel.from_json({**RAMP.to_json(), "fft": {"flops": 1.0}})
    with pytest.raises(CostError, match="the weights are no table of kinds and features"):
        CostModel.from_json([1.0])


@pytest.mark.parametrize(
    ("platform", "source"),
    [
        ("cpu", CPU),
        ("gpu", GPU),
        ("cuda", GPU),
        ("tpu", f"{CPU} (nothing is shipped for tpu)"),
    ],
)
def test_shipped_models(platform, source):
    model = default_model(platform)
    assert model.source == source
    assert (model.weights < 1e-2).all()
    assert model.weights.any()
    assert (model == default_model("cpu")) == (platform in ("cpu", "tpu"))
