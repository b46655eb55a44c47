"""`PredictionLog`s and other protocol buffers as their bytes, of which few kinds of fields are needed here."""


def field(number: int, content: bytes) -> bytes:
    """A field that holds a text or a message: its number (below 16) and kind, its length in groups of 7 bits, it."""
    length = bytearray()
    rest = len(content)
    while rest > 127:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([number << 3 | 2, *length, rest]) + content


def fields(message: bytes) -> dict[int, list[bytes]]:
    """The fields of a protocol buffer by their numbers, in their order; of numbers of variable length nothing."""
    found: dict[int, list[bytes]] = {}
    place = 0
    while place < len(message):
        key, place = _number(message, place)
        match key & 7:
            case 0:
                _, place = _number(message, place)
                continue
            case 1:
                size = 8
            case 2:
                size, place = _number(message, place)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"it is no PredictionLog: a field of kind {kind}")
        if place + size > len(message):
            raise ValueError("it is no PredictionLog: it ends within a field")
        found.setdefault(key >> 3, []).append(message[place : place + size])
        place += size
    return found


def _number(message: bytes, place: int) -> tuple[int, int]:
    """A number in groups of 7 bits, and the place behind it."""
    number = shift = 0
    for end in range(place, len(message)):
        number = number | (message[end] & 127) << shift
        shift = shift + 7
        if message[end] < 128:
            return number, end + 1
    raise ValueError("it is no PredictionLog: it ends within a field")
