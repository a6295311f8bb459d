// Package conductorpb is the generated code of conductor.proto. To generate it anew,
// with protoc 3.21, protoc-gen-go 1.36 and protoc-gen-go-grpc 1.6 on PATH: make generate.
package conductorpb
