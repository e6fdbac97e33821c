"""A Protobuf message with every kind of field, described without protoc."""

from __future__ import annotations

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

_ONE, _MANY = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
_KINDS = {
    kind.removeprefix("TYPE_").lower(): number
    for kind, number in FieldDescriptorProto.Type.items()
    if kind not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
SCALARS = tuple(_KINDS)


def add_field(message: DescriptorProto, name: str, kind: str, label: int = _ONE) -> None:
    """`kind` is a scalar's name, or a full name with a dot before it, an enum's with a `#` before that."""
    number = len(message.field) + 1
    if kind in _KINDS:
        message.field.add(name=name, number=number, label=label, type=_KINDS[kind])
        return
    enum = kind.startswith("#")
    reference = FieldDescriptorProto.TYPE_ENUM if enum else FieldDescriptorProto.TYPE_MESSAGE
    message.field.add(name=name, number=number, label=label, type=reference, type_name=kind.removeprefix("#"))


def descriptor_set() -> bytes:
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name])
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    add_field(item := file.message_type.add(name="Item"), "id", "uint64")
    add_field(item, "tags", "string", _MANY)
    add_field(file.message_type.add(name="Tree"), "left", ".shop.Tree")
    file.message_type.add(name="Empty")
    order = file.message_type.add(name="Order")
    for kind in SCALARS:
        add_field(order, f"a_{kind}", kind)
    add_field(order, "color", "#.shop.Color")
    add_field(order, "item", ".shop.Item")
    add_field(order, "items", ".shop.Item", _MANY)
    add_field(order, "colors", "#.shop.Color", _MANY)
    add_field(order, "made", ".google.protobuf.Timestamp")
    add_field(order, "took", ".google.protobuf.Duration")
    entry = order.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    add_field(entry, "key", "string")
    add_field(entry, "value", ".shop.Item")
    add_field(order, "by_name", ".shop.Order.ByNameEntry", _MANY)
    order.oneof_decl.add(name="_maybe")
    add_field(order, "maybe", "int32")
    order.field[-1].oneof_index = 0
    order.field[-1].proto3_optional = True
    known = [FileDescriptorProto.FromString(m.DESCRIPTOR.serialized_pb) for m in (timestamp_pb2, duration_pb2)]
    return bytes(FileDescriptorSet(file=[*known, file]).SerializeToString())
