"""The contract that every method of the package passes, for methods and parts of other packages.

    tf.testing.check_method(tf.Method(direction=MyDirection()))

Each check is a function of a method. It raises AssertionError with a sentence that says what does
not hold, or `unittest.SkipTest` with the reason why it does not apply. `ALL` has them in an order
in which causes come before what they lead to. Under pytest:

    @pytest.mark.parametrize("check", tf.testing.ALL)
    def test_contract(check):
        check(METHOD)
"""

from .checks import (
    ALL,
    check_absent_clients_keep_their_memory,
    check_batched_equals_looped,
    check_bytes_are_real,
    check_channels_are_declared,
    check_chunks_agree,
    check_crashed_and_resumed,
    check_dtype_and_device_are_kept,
    check_global_state_is_untouched,
    check_history,
    check_inputs_are_unmutated,
    check_memory_keeps_its_form,
    check_method,
    check_order_of_clients_does_not_matter,
    check_rules_are_pure,
    check_same_seed_same_bits,
    check_settings_survive,
    check_stopped_and_resumed,
)

__all__ = [
    "ALL",
    "check_absent_clients_keep_their_memory",
    "check_batched_equals_looped",
    "check_bytes_are_real",
    "check_channels_are_declared",
    "check_chunks_agree",
    "check_crashed_and_resumed",
    "check_dtype_and_device_are_kept",
    "check_global_state_is_untouched",
    "check_history",
    "check_inputs_are_unmutated",
    "check_memory_keeps_its_form",
    "check_method",
    "check_order_of_clients_does_not_matter",
    "check_rules_are_pure",
    "check_same_seed_same_bits",
    "check_settings_survive",
    "check_stopped_and_resumed",
]
