"""The time loops of `time_loops` in ONNX: each is a Scan. This file needs onnxscript."""

# mypy: ignore-errors
# The bodies are in the language of onnxscript, which is no Python to a type checker.

from typing import Any

import torch
from onnxscript import FLOAT, graph, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

_own = Opset("fedrows.device", 1)


@script(_own)
def lstm(gates: FLOAT, weight: FLOAT, h: FLOAT, c: FLOAT) -> tuple[FLOAT, FLOAT, FLOAT, FLOAT]:
    turned = op.Transpose(weight, perm=[1, 0])

    @graph()
    def body(h_in, c_in, now):
        i_in, f_in, g_in, o_in = op.Split(
            op.Add(now, op.MatMul(h_in, turned)), axis=-1, num_outputs=4
        )
        i = op.Sigmoid(i_in)
        f = op.Sigmoid(f_in)
        g = op.Tanh(g_in)
        o = op.Sigmoid(o_in)
        c_out = op.Add(op.Mul(f, c_in), op.Mul(i, g))
        h_out = op.Mul(o, op.Tanh(c_out))
        h_step = op.Identity(h_out)
        c_step = op.Identity(c_out)
        active_step = op.Concat(i, f, g, o, axis=-1)
        return h_out, c_out, h_step, c_step, active_step

    _last, cell, hidden, cells, active = op.Scan(h, c, gates, body=body, num_scan_inputs=1)
    return hidden, cell, cells, active


@script(_own)
def lstm_backward(
    slope: FLOAT, to_cell: FLOAT, f: FLOAT, above: FLOAT, weight: FLOAT, dc: FLOAT
) -> tuple[FLOAT, FLOAT, FLOAT]:
    none = op.Sub(dc, dc)

    @graph()
    def body(carried, dc_in, slope_t, to_cell_t, f_t, above_t):
        dh = op.Add(above_t, carried)
        dc_now = op.Add(dc_in, op.Mul(dh, to_cell_t))
        now = op.Mul(slope_t, op.Concat(dc_now, dc_now, dc_now, dh, axis=-1))
        dc_out = op.Mul(dc_now, f_t)
        carried_out = op.MatMul(now, weight)
        return carried_out, dc_out, now

    dh_first, dc_first, gates = op.Scan(
        none,
        dc,
        slope,
        to_cell,
        f,
        above,
        body=body,
        num_scan_inputs=4,
        scan_input_directions=[1, 1, 1, 1],
        scan_output_directions=[1],
    )
    return gates, dh_first, dc_first


@script(_own)
def gru(gates: FLOAT, weight: FLOAT, bias: FLOAT, h: FLOAT) -> tuple[FLOAT, FLOAT, FLOAT, FLOAT]:
    turned = op.Transpose(weight, perm=[1, 0])

    @graph()
    def body(h_in, now):
        r_in, z_in, n_in = op.Split(now, axis=-1, num_outputs=3)
        own_r, own_z, own_n = op.Split(
            op.Add(op.MatMul(h_in, turned), bias), axis=-1, num_outputs=3
        )
        r = op.Sigmoid(op.Add(r_in, own_r))
        z = op.Sigmoid(op.Add(z_in, own_z))
        n = op.Tanh(op.Add(n_in, op.Mul(r, own_n)))
        h_out = op.Add(n, op.Mul(z, op.Sub(h_in, n)))
        h_step = op.Identity(h_out)
        inner_step = op.Identity(own_n)
        active_step = op.Concat(r, z, n, axis=-1)
        return h_out, h_step, inner_step, active_step

    last, hidden, inner, active = op.Scan(h, gates, body=body, num_scan_inputs=1)
    return hidden, last, inner, active


@script(_own)
def gru_backward(slope: FLOAT, z: FLOAT, above: FLOAT, weight: FLOAT) -> tuple[FLOAT, FLOAT]:
    first = op.Gather(above, op.Constant(value_int=0), axis=0)
    none = op.Sub(first, first)

    @graph()
    def body(carried, slope_t, z_t, above_t):
        dh = op.Add(above_t, carried)
        now = op.Mul(slope_t, op.Concat(dh, dh, dh, dh, axis=-1))
        of_r, of_z, of_own, _of_n = op.Split(now, axis=-1, num_outputs=4)
        own = op.Concat(of_r, of_z, of_own, axis=-1)
        carried_out = op.Add(op.Mul(dh, z_t), op.MatMul(own, weight))
        now_step = op.Identity(now)
        return carried_out, now_step

    dh_first, slopes = op.Scan(
        none,
        slope,
        z,
        above,
        body=body,
        num_scan_inputs=3,
        scan_input_directions=[1, 1, 1],
        scan_output_directions=[1],
    )
    return slopes, dh_first


TABLE: dict[Any, Any] = {
    torch.ops.fedrows_device.lstm.default: lstm,
    torch.ops.fedrows_device.lstm_backward.default: lstm_backward,
    torch.ops.fedrows_device.gru.default: gru,
    torch.ops.fedrows_device.gru_backward.default: gru_backward,
}
