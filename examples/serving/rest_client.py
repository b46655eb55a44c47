"""Asks a server by REST, with the standard library alone.

python examples/serving/rest_client.py localhost:8501 td3-halfcheetah
"""

import argparse
import json
import urllib.error
import urllib.request


class Refused(RuntimeError):
    """What the server says of a request that it does not answer."""


def send_request(url, content=None):
    """The JSON of an answer: to a GET, or to a POST of `content`."""
    body = None if content is None else json.dumps(content).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(f"{error.code}: {json.load(error)['error']}") from None


def in_columns(url, signature, **inputs):
    """The outputs of a signature; each input is a list of rows. One output comes without its name."""
    return send_request(f"{url}:predict", {"signature_name": signature, "inputs": inputs})["outputs"]


def in_rows(url, signature, rows):
    """The outputs for each row, which is an object with the inputs by name. One output comes without its name."""
    return send_request(f"{url}:predict", {"signature_name": signature, "instances": rows})["predictions"]


def main():
    """Prints actions for two observations, and what the critics think of them."""
    arguments = parser().parse_args()
    url = f"http://{arguments.address}/v1/models/{arguments.model}"
    signatures = send_request(f"{url}/metadata")["metadata"]["signature_def"]["signature_def"]
    width = int(signatures["pi"]["inputs"]["x"]["tensor_shape"]["dim"][-1]["size"])
    if arguments.label:
        url += f"/labels/{arguments.label}"
    x = [[0.0] * width, [1.0] * width]
    actions = in_columns(url, "pi", x=x)
    print(f"acts: {actions}")
    for name in ("q1", "q2"):
        print(f"{name}: {in_rows(url, name, [{'x': row, 'a': a} for row, a in zip(x, actions, strict=True)])}")


def parser():
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("address", help="host:port of REST")
    found.add_argument("model", help="the model's name")
    found.add_argument("--label", help="the label to ask, such as stable")
    return found


if __name__ == "__main__":
    main()
