"""Sees what a GradScaler does, whoever calls it. Wraps the instance: the class and other scalers stay as they are."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

_MARK = "_memcallbacks_tap"


class Listener(Protocol):
    """Who is told. Each call comes right after Paddle's own method, before the caller goes on."""

    def on_unscaled(self) -> None:
        """Gradients were unscaled and not yet clipped."""

    def on_stepped(self, optimizer: Any, found_inf: bool) -> None:
        """The optimizer stepped, or was skipped for ``found_inf``."""

    def on_updated(self) -> None:
        """One step is over: the scale is what the next step uses."""

    def on_disabled(self, optimizer: Any) -> None:
        """Before an optimizer steps through a scaler that is off."""


def found_inf(scaler: Any) -> bool:
    """Whether the scaler's last step was skipped: the flag that Paddle has read from the device itself."""
    # paddle 2.6 writes it this way
    name = "_cache_founf_inf" if hasattr(scaler, "_cache_founf_inf") else "_cache_found_inf"
    flag = getattr(scaler, name, False)
    return flag if isinstance(flag, bool) else bool(flag)


class _Saved(NamedTuple):
    own: Any
    original: Any
    wrapper: Any


class ScalerTap:
    """Wraps ``step``, ``update``, ``minimize``, ``unscale_`` and ``_unscale`` of one scaler."""

    def __init__(self, scaler: Any, listener: Listener) -> None:
        self.scaler = scaler
        self._listener = listener
        self._stepped = False
        self._saved: dict[str, _Saved] = {}

    @property
    def attached(self) -> bool:
        return bool(self._saved)

    def attach(self) -> None:
        """Put the wrappers in.

        Raises:
            RuntimeError: another watch is on this scaler.
        """
        if self.attached:
            return
        if vars(self.scaler).get(_MARK) is not None:
            raise RuntimeError("this GradScaler is watched already: detach the other LossScaleWatch first")
        wrappers = {
            "step": self._step,
            "update": self._update,
            "minimize": self._minimize,
            # unscale_() does not go through _unscale() of the instance, step() and minimize() do
            "unscale_": self._unscale,
            "_unscale": self._unscale_inside,
        }
        for name, wrapper in wrappers.items():
            self._saved[name] = _Saved(vars(self.scaler).get(name), getattr(self.scaler, name), wrapper)
            setattr(self.scaler, name, wrapper)
        setattr(self.scaler, _MARK, self)

    def detach(self) -> None:
        """Give the scaler its own methods back."""
        for name, saved in self._saved.items():
            if vars(self.scaler).get(name) != saved.wrapper:
                # fleet.distributed_scaler, or another, has put its own over ours
                continue
            if saved.own is None:
                delattr(self.scaler, name)
            else:
                setattr(self.scaler, name, saved.own)
        self._saved = {}
        vars(self.scaler).pop(_MARK, None)

    def _step(self, optimizer: Any) -> Any:
        original = self._saved["step"].original
        if not self.scaler._enable:
            self._listener.on_disabled(optimizer)
            return original(optimizer)
        result = original(optimizer)
        self._after_step(optimizer)
        if not self.scaler._use_dynamic_loss_scaling:
            # Paddle asks for no update() with a fixed scale
            self._after_update()
        return result

    def _update(self) -> Any:
        result = self._saved["update"].original()
        self._after_update()
        return result

    def _minimize(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._saved["minimize"].original
        if not self.scaler._enable:
            self._listener.on_disabled(optimizer)
            return original(optimizer, *args, **kwargs)
        result = original(optimizer, *args, **kwargs)
        self._after_step(optimizer)
        self._after_update()
        return result

    def _unscale(self, optimizer: Any) -> Any:
        result = self._saved["unscale_"].original(optimizer)
        self._listener.on_unscaled()
        return result

    def _unscale_inside(self, optimizer: Any) -> Any:
        result = self._saved["_unscale"].original(optimizer)
        self._listener.on_unscaled()
        return result

    def _after_step(self, optimizer: Any) -> None:
        self._stepped = True
        self._listener.on_stepped(optimizer, found_inf(self.scaler))

    def _after_update(self) -> None:
        if self._stepped:
            self._stepped = False
            self._listener.on_updated()
