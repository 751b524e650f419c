"""The official schema of execution traces as messages of the protobuf package, made of a descriptor.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (field names, numbers and types).
"""

import pytest

pytest.importorskip("google.protobuf", reason="the protobuf package, which is the oracle, is not installed")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SCALARS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64")
SCALARS += ("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes")
"""Values of an attribute in the order of their numbers from 3 on; each has its list after it."""
_FIELD = descriptor_pb2.FieldDescriptorProto


def _add(message, name, number, kind, *, repeated=False, type_name=None, oneof=None):
    field = message.field.add(
        name=name, number=number, label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    )
    field.type = _FIELD.TYPE_MESSAGE if type_name else getattr(_FIELD, f"TYPE_{kind.upper()}")
    if type_name:
        field.type_name = f".ChakraProtoMsg.{type_name}"
    if oneof is not None:
        field.oneof_index = oneof


def _file():
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _add(attribute, "name", 1, "string")
    _add(attribute, "doc_string", 2, "string")
    for place, kind in enumerate(SCALARS):
        of = f"{kind.capitalize()}List"
        _add(file.message_type.add(name=of), "values", 1, kind, repeated=True)
        _add(attribute, f"{kind}_val", 3 + 2 * place, kind, oneof=0)
        _add(attribute, f"{kind}_list", 4 + 2 * place, kind, type_name=of, oneof=0)
    metadata = file.message_type.add(name="GlobalMetadata")
    _add(metadata, "version", 1, "string")
    _add(metadata, "attr", 2, "", repeated=True, type_name="AttributeProto")
    tensors = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        _add(tensors, name, number, "string")
    node = file.message_type.add(name="Node")
    _add(node, "id", 1, "uint64")
    _add(node, "name", 2, "string")
    # An open enumeration is an int32 on the wire.
    _add(node, "type", 3, "int32")
    _add(node, "ctrl_deps", 4, "uint64", repeated=True)
    _add(node, "data_deps", 5, "uint64", repeated=True)
    _add(node, "start_time_micros", 6, "uint64")
    _add(node, "duration_micros", 7, "uint64")
    _add(node, "inputs", 8, "", type_name="IOInfo")
    _add(node, "outputs", 9, "", type_name="IOInfo")
    _add(node, "attr", 10, "", repeated=True, type_name="AttributeProto")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _message(name):
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))


Attribute, Metadata, Node = _message("AttributeProto"), _message("GlobalMetadata"), _message("Node")


def records(data):
    """Yield the bytes of each message of a file."""
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert at + size <= len(data)
        yield data[at : at + size]
        at += size


def trace_of(data):
    """Return the metadata and the nodes of a file."""
    first, *others = records(data)
    return Metadata.FromString(first), [Node.FromString(each) for each in others]


def written(metadata, nodes):
    """Return the bytes of a file."""
    found = bytearray()
    for message in (metadata, *nodes):
        data = message.SerializeToString()
        size = len(data)
        while size > 0x7F:
            found.append(size & 0x7F | 0x80)
            size >>= 7
        found.append(size)
        found += data
    return bytes(found)


def value_of(attribute):
    """Return the value of an attribute; lists as lists."""
    kind = attribute.WhichOneof("value")
    value = getattr(attribute, kind)
    return list(value.values) if kind.endswith("_list") else value
