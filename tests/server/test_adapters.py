"""Adapters over HTTP: each is a model, by the name that the pipeline gives it."""

from pathlib import Path

from stepweave.server.settings import Settings
from stepweave.testing import save_adapter, save_tiny
from tests.server.in_thread import running


def test_an_adapter_is_served_as_a_model_of_its_name(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", num_hidden_layers=1)
    folder = str(save_adapter(tmp_path / "adapter", base))
    keys = {
        "model.adapters": {"adapted": folder},
        "scheduler.num_blocks": 64,
        "nodes.bitmask.compile_limit_s": None,
    }
    body = {"prompt": "to be or not", "max_tokens": 8, "temperature": 0}
    with (
        running(Settings(models=("plain",)), keys, pipeline="async_grammar", model=base) as service,
        service.client() as client,
    ):
        listed = client.get("/v1/models").json()["data"]
        assert [(each["id"], each["root"], each["parent"]) for each in listed] == [
            ("plain", str(base), None),
            ("adapted", folder, "plain"),
        ]
        assert client.get("/v1/models/adapted").json() == listed[1]
        answers = [
            client.post("/v1/completions", json={**body, "model": name}).json()
            for name in ("plain", "adapted")
        ]
        assert [answer["model"] for answer in answers] == ["plain", "adapted"]
        texts = [answer["choices"][0]["text"] for answer in answers]
        assert texts[0] != texts[1]
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        said = client.post("/v1/chat/completions", json={**chat, "model": "adapted"})
        assert said.json()["model"] == "adapted"
        refused = client.post("/v1/completions", json={**body, "adapter": "adapted"})
        assert refused.status_code == 400
        assert "give its name as `model`" in refused.json()["error"]["message"]
