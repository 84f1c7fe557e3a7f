"""`tunefree advise`."""


def test_the_command_prints_what_to_type(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = call("advise", "--clients", 6, "--split", "iid", "--tuning")
    assert code == 0
    said = out.splitlines()
    assert said[0].startswith("6 clients, 6 a round, label skew 0.")
    assert "   tunefree run --split iid --clients 6 --method fedduadagrad" in said
    assert "   tunefree tune --split iid --clients 6 --method fedduadagrad" in said
    assert "   To choose: lr." in said
