// Package objectstore is an S3-compatible object store on local disk: strongly
// consistent, with conditional writes, and fsynced before every answer. It is used
// through its HTTP face only; docs/guide/objectstore.md says what it does and what not.
package objectstore
