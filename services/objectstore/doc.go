// Package objectstore is an S3-compatible object store on local disk: strongly
// consistent, with conditional writes, and fsynced before every answer. It is used only through
// HTTP; docs/guide/objectstore.md lists what it supports.
package objectstore
