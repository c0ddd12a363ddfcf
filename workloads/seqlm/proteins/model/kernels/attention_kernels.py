"""Triton kernels of attention within the proteins of a pack.

A program computes one head of one tile. Queries, keys and values are those of the joined tensor (T, 3 C)
after rotation: first all heads of the queries, then of the keys, then of the values. Sums are fp32, and
exponentials are powers of 2. Only a segment's last tile of the inner loop is masked. Every element of a
result has one writer, and no kernel adds with atomics, so that results are equal bit for bit at each call.

Shapes: T tokens, C channels, H heads, D head size, N tiles. Head sizes are padded to a power of 2 (PADDED).

Names in capitals are constants of a compiled kernel. ``tiles`` is a list of ``AttentionTiles``.
"""

import triton
import triton.language as tl


@triton.jit
def rotate(
    queries,
    keys,
    values,
    queries_stride,
    keys_stride,
    values_stride,
    out,
    cos,
    sin,
    num_tokens,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Write rotated queries and keys, and unchanged values, (T, C) each, side by side to ``out`` (T, 3 C).

    The source may be ``out`` itself. The first axis of the grid is the source: with a size of 2, values stay
    as they are. Blocks are made of pairs of numbers that are rotated together, whichever heads they belong
    to, so that they have no spare columns at any head size.
    """
    source = tl.program_id(0)
    pairs = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    half: tl.constexpr = SIZE // 2
    within = pairs % half
    columns = pairs // half * SIZE + within
    mask = (rows < num_tokens)[:, None] & (pairs < WIDTH // 2)[None, :]
    rows = rows[:, None].to(tl.int64)
    angles = rows * half + within[None, :]
    to = out + rows * (3 * WIDTH) + source * WIDTH + columns[None, :]
    if source == 2:
        of_values = values + rows * values_stride + columns[None, :]
        tl.store(to, tl.load(of_values, mask=mask), mask=mask)
        tl.store(to + half, tl.load(of_values + half, mask=mask), mask=mask)
    else:
        if source == 0:
            first = queries + rows * queries_stride + columns[None, :]
        else:
            first = keys + rows * keys_stride + columns[None, :]
        a = tl.load(first, mask=mask).to(tl.float32)
        b = tl.load(first + half, mask=mask).to(tl.float32)
        c = tl.load(cos + angles, mask=mask)
        s = tl.load(sin + angles, mask=mask)
        tl.store(to, (a * c - b * s).to(out.dtype.element_ty), mask=mask)
        tl.store(to + half, (b * c + a * s).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _load(
    x,
    rows,
    valid,
    stride,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return rows of one head, (rows, PADDED), with zeros beyond SIZE and, if MASKED, where not valid."""
    columns = tl.arange(0, PADDED)
    at = x + rows[:, None].to(tl.int64) * stride + columns[None, :]
    inside = (columns < SIZE)[None, :]
    if MASKED:
        if SIZE == PADDED:
            return tl.load(at, mask=valid[:, None], other=0.0)
        return tl.load(at, mask=valid[:, None] & inside, other=0.0)
    if SIZE == PADDED:
        return tl.load(at)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _store(x, values, rows, valid, stride, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Store rows of one head in the type of ``x``."""
    columns = tl.arange(0, PADDED)
    mask = valid[:, None] & (columns < SIZE)[None, :]
    at = x + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(at, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def _store_column_sums(sums, values, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Store the sums of a tile's columns, to be added up over tiles."""
    columns = tl.arange(0, PADDED)
    tl.store(sums + columns, tl.sum(values, 0), mask=columns < SIZE)


@triton.jit
def _rotated_back(grad, rows, valid, cos, sin, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Return the gradient (rows, PADDED) of rotated numbers as that of the numbers before rotation."""
    half: tl.constexpr = SIZE // 2
    columns = tl.arange(0, PADDED)
    mask = valid[:, None] & (columns < SIZE)[None, :]
    angles = rows[:, None] * half + (columns % half)[None, :]
    other_half = tl.broadcast_to(((columns + half) % SIZE)[None, :], grad.shape)
    # A rotation's transpose is the rotation by the opposite angle.
    sign = tl.where(columns < half, 1.0, -1.0)
    turned = tl.gather(grad, other_half, 1) * tl.load(sin + angles, mask=mask, other=0.0)
    return grad * tl.load(cos + angles, mask=mask, other=0.0) + turned * sign[None, :]


@triton.jit
def _attend_to_tile(
    q,
    k_of,
    v_of,
    begin,
    start,
    length,
    scale,
    total,
    highest,
    context,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add a tile of keys to the running softmax (Dao et al. 2022, FlashAttention, algorithm 1)."""
    places = begin + tl.arange(0, KEYS)
    valid = places < length
    k = _load(k_of, start + places, valid, STRIDE, SIZE, PADDED, MASKED)
    v = _load(v_of, start + places, valid, STRIDE, SIZE, PADDED, MASKED)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        scores = tl.where(valid[None, :], scores, -float("inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
    p = tl.math.exp2(scores * scale - new_highest[:, None])
    shrink = tl.math.exp2(highest - new_highest)
    total = total * shrink + tl.sum(p, 1)
    context = tl.dot(p.to(v.dtype), v, context * shrink[:, None], input_precision="ieee")
    return total, new_highest, context


@triton.jit(do_not_specialize=["num_tokens"])
def forward(
    qkv,
    context,
    sums,
    tiles,
    num_tiles,
    num_tokens,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    KEEPS: tl.constexpr,
):
    """Write the result (T, C) and, if KEEPS, the logarithms to base 2 of the softmax's sums, (H, T)."""
    head = tl.program_id(0) % HEADS
    tile = tl.program_id(0) // HEADS
    length = tl.load(tiles + num_tiles + tile)
    if length == 0:
        return
    start = tl.load(tiles + tile)
    places = tl.load(tiles + 2 * num_tiles + tile) + tl.arange(0, QUERIES)
    width: tl.constexpr = HEADS * SIZE
    stride: tl.constexpr = 3 * width
    q_of = qkv + head * SIZE
    k_of = q_of + width
    v_of = k_of + width
    rows = start + places
    valid = places < length
    q = _load(q_of, rows, valid, stride, SIZE, PADDED, True)
    total = tl.zeros([QUERIES], tl.float32)
    highest = tl.full([QUERIES], -float("inf"), tl.float32)
    found = tl.zeros([QUERIES, PADDED], tl.float32)
    whole = length // KEYS * KEYS
    for begin in range(0, whole, KEYS):
        total, highest, found = _attend_to_tile(
            q, k_of, v_of, begin, start, length, scale, total, highest, found,
            stride, SIZE, PADDED, KEYS, False,
        )  # fmt: skip
    if whole < length:
        total, highest, found = _attend_to_tile(
            q, k_of, v_of, whole, start, length, scale, total, highest, found,
            stride, SIZE, PADDED, KEYS, True,
        )  # fmt: skip
    _store(context + head * SIZE, found / total[:, None], rows, valid, width, SIZE, PADDED)
    if KEEPS:
        at = sums + head.to(tl.int64) * num_tokens + rows
        tl.store(at, highest + tl.math.log2(total), mask=valid)


@triton.jit
def _add_gradient_of_queries(
    q,
    grad,
    k_of,
    v_of,
    begin,
    start,
    length,
    scale,
    logsum,
    delta,
    dq,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add a tile of keys to the gradients of a tile of queries."""
    places = begin + tl.arange(0, KEYS)
    valid = places < length
    k = _load(k_of, start + places, valid, STRIDE, SIZE, PADDED, MASKED)
    v = _load(v_of, start + places, valid, STRIDE, SIZE, PADDED, MASKED)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    p = tl.math.exp2(scores * scale - logsum[:, None])
    if MASKED:
        p = tl.where(valid[None, :], p, 0.0)
    dp = tl.dot(grad, tl.trans(v), input_precision="ieee")
    ds = p * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")


@triton.jit(do_not_specialize=["num_tokens"])
def of_queries(
    qkv,
    context,
    grad_of_context,
    sums,
    sums_and_deltas,
    dqkv,
    column_sums,
    cos,
    sin,
    tiles,
    num_tiles,
    num_tokens,
    scale,
    plain_scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    ADDS_COLUMNS: tl.constexpr,
):
    """Write the gradients of queries before rotation, and what the pass over keys needs of each query.

    That is (H, T, 2): the logarithm of the softmax's sum, and the sum of the result times its gradient. If
    ADDS_COLUMNS, ``column_sums`` (N, 3 C) gets the sums of the tile's columns of gradients.
    """
    head = tl.program_id(0) % HEADS
    tile = tl.program_id(0) // HEADS
    width: tl.constexpr = HEADS * SIZE
    stride: tl.constexpr = 3 * width
    columns_of = column_sums + tile.to(tl.int64) * stride + head * SIZE
    length = tl.load(tiles + num_tiles + tile)
    if length == 0:
        if ADDS_COLUMNS:
            _store_column_sums(columns_of, tl.zeros([1, PADDED], tl.float32), SIZE, PADDED)
        return
    start = tl.load(tiles + tile)
    places = tl.load(tiles + 2 * num_tiles + tile) + tl.arange(0, QUERIES)
    q_of = qkv + head * SIZE
    k_of = q_of + width
    v_of = k_of + width
    rows = start + places
    valid = places < length
    grad = _load(grad_of_context + head * SIZE, rows, valid, width, SIZE, PADDED, True)
    found = _load(context + head * SIZE, rows, valid, width, SIZE, PADDED, True)
    delta = tl.sum(grad.to(tl.float32) * found.to(tl.float32), 1)
    at = head.to(tl.int64) * num_tokens + rows
    logsum = tl.load(sums + at, mask=valid, other=0.0)
    tl.store(sums_and_deltas + 2 * at, logsum, mask=valid)
    tl.store(sums_and_deltas + 2 * at + 1, delta, mask=valid)
    q = _load(q_of, rows, valid, stride, SIZE, PADDED, True)
    dq = tl.zeros([QUERIES, PADDED], tl.float32)
    whole = length // KEYS * KEYS
    for begin in range(0, whole, KEYS):
        dq = _add_gradient_of_queries(
            q, grad, k_of, v_of, begin, start, length, scale, logsum, delta, dq,
            stride, SIZE, PADDED, KEYS, False,
        )  # fmt: skip
    if whole < length:
        dq = _add_gradient_of_queries(
            q, grad, k_of, v_of, whole, start, length, scale, logsum, delta, dq,
            stride, SIZE, PADDED, KEYS, True,
        )  # fmt: skip
    dq = _rotated_back(dq * plain_scale, rows, valid, cos, sin, SIZE, PADDED)
    if ADDS_COLUMNS:
        _store_column_sums(columns_of, dq, SIZE, PADDED)
    _store(dqkv + head * SIZE, dq, rows, valid, stride, SIZE, PADDED)


@triton.jit
def _add_gradients_of_keys(
    k,
    v,
    q_of,
    grad_of,
    sums_and_deltas,
    begin,
    start,
    length,
    scale,
    dk,
    dv,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add a tile of queries to the gradients of a tile of keys and values."""
    places = begin + tl.arange(0, QUERIES)
    rows = start + places
    valid = places < length
    q = _load(q_of, rows, valid, 3 * WIDTH, SIZE, PADDED, MASKED)
    grad = _load(grad_of, rows, valid, WIDTH, SIZE, PADDED, MASKED)
    both = sums_and_deltas + 2 * rows[:, None] + tl.arange(0, 2)[None, :]
    # A spare query has zeros in place of numbers, so it adds nothing.
    if MASKED:
        logsum, delta = tl.split(tl.load(both, mask=valid[:, None], other=0.0))
    else:
        logsum, delta = tl.split(tl.load(both))
    scores = tl.dot(k, tl.trans(q), input_precision="ieee")  # (keys, queries)
    p = tl.math.exp2(scores * scale - logsum[None, :])
    dv = tl.dot(p.to(v.dtype), grad, dv, input_precision="ieee")
    dp = tl.dot(v, tl.trans(grad), input_precision="ieee")
    ds = (p * (dp - delta[None, :])).to(k.dtype)
    dk = tl.dot(ds, q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=["num_tokens"])
def of_keys(
    qkv,
    grad_of_context,
    sums_and_deltas,
    dqkv,
    column_sums,
    cos,
    sin,
    tiles,
    num_tiles,
    num_tokens,
    scale,
    plain_scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    ADDS_COLUMNS: tl.constexpr,
):
    """Write the gradients of keys before rotation and of values; see ``of_queries``."""
    head = tl.program_id(0) % HEADS
    tile = tl.program_id(0) // HEADS
    width: tl.constexpr = HEADS * SIZE
    stride: tl.constexpr = 3 * width
    columns_of = column_sums + tile.to(tl.int64) * stride + width + head * SIZE
    length = tl.load(tiles + num_tiles + tile)
    if length == 0:
        if ADDS_COLUMNS:
            nothing = tl.zeros([1, PADDED], tl.float32)
            _store_column_sums(columns_of, nothing, SIZE, PADDED)
            _store_column_sums(columns_of + width, nothing, SIZE, PADDED)
        return
    start = tl.load(tiles + tile)
    places = tl.load(tiles + 2 * num_tiles + tile) + tl.arange(0, KEYS)
    q_of = qkv + head * SIZE
    rows = start + places
    valid = places < length
    k = _load(q_of + width, rows, valid, stride, SIZE, PADDED, True)
    v = _load(q_of + 2 * width, rows, valid, stride, SIZE, PADDED, True)
    dk = tl.zeros([KEYS, PADDED], tl.float32)
    dv = tl.zeros([KEYS, PADDED], tl.float32)
    grad_of = grad_of_context + head * SIZE
    of_head = sums_and_deltas + head.to(tl.int64) * num_tokens * 2
    whole = length // QUERIES * QUERIES
    for begin in range(0, whole, QUERIES):
        dk, dv = _add_gradients_of_keys(
            k, v, q_of, grad_of, of_head, begin, start, length, scale, dk, dv,
            width, SIZE, PADDED, QUERIES, False,
        )  # fmt: skip
    if whole < length:
        dk, dv = _add_gradients_of_keys(
            k, v, q_of, grad_of, of_head, whole, start, length, scale, dk, dv,
            width, SIZE, PADDED, QUERIES, True,
        )  # fmt: skip
    # Values first, and sums before numbers are stored: the kernel then needs the fewest registers.
    dv_of = dqkv + 2 * width + head * SIZE
    if ADDS_COLUMNS:
        # Spare keys have zeros for numbers, but not for gradients.
        of_values = tl.where(valid[:, None], dv, 0.0)
        _store_column_sums(columns_of + width, of_values, SIZE, PADDED)
    _store(dv_of, dv, rows, valid, stride, SIZE, PADDED)
    dk = _rotated_back(dk * plain_scale, rows, valid, cos, sin, SIZE, PADDED)
    if ADDS_COLUMNS:
        _store_column_sums(columns_of, tl.where(valid[:, None], dk, 0.0), SIZE, PADDED)
    _store(dv_of - width, dk, rows, valid, stride, SIZE, PADDED)
