from typer.testing import CliRunner

from stepweave.cli.main import app


def test_the_doctor_finds_everything_that_the_quickstart_needs() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    for name in ("python", "torch", "xgrammar", "llguidance", "cores", "cuda", "embedded target"):
        assert name in result.stdout
