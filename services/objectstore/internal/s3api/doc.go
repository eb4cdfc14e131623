// Package s3api is the S3 API of the store: it routes, authenticates and answers requests over an
// engine. It imports nothing of the service around it.
package s3api
