import torch

from embedkit.modeling.teacher_layers import fit_affine, fit_scale


def test_an_affine_map_is_found_again():
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(200, 6) + 3, torch.randn(4, 6), torch.randn(4)

    found, shift = fit_affine(inputs, inputs @ weight.T + bias, ridge=1e-9)

    torch.testing.assert_close(found, weight, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(shift, bias, atol=1e-3, rtol=1e-3)


def test_equal_columns_share_the_weight():
    inputs = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)).repeat(1, 2)

    found, _ = fit_affine(inputs, inputs[:, :1])

    torch.testing.assert_close(found, torch.full((1, 2), 0.5), atol=1e-3, rtol=0)


def test_a_ridge_shrinks_weights_and_keeps_the_mean():
    torch.manual_seed(0)
    inputs, targets = torch.randn(50, 3), torch.randn(50, 2) + 5

    free, loose = fit_affine(inputs, targets, ridge=1e-9)[0], fit_affine(inputs, targets, ridge=100.0)

    assert loose[0].norm() < 0.1 * free.norm()
    torch.testing.assert_close((inputs @ loose[0].T + loose[1]).mean(dim=0), targets.mean(dim=0))


def test_scale_and_shift_are_those_of_each_column():
    inputs = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    scale, shift = fit_scale(inputs, inputs * torch.tensor([2.0, -1.0, 0.5]) + torch.tensor([0.0, 3.0, -1.0]))

    torch.testing.assert_close(scale, torch.tensor([2.0, -1.0, 0.5]))
    torch.testing.assert_close(shift, torch.tensor([0.0, 3.0, -1.0]))


def test_a_column_that_never_changes_gets_no_scale():
    scale, shift = fit_scale(torch.full((5, 1), 2.0), torch.arange(5.0)[:, None])

    assert (scale.item(), shift.item()) == (0.0, 2.0)
