# A machine image for the instances of AWS pools. The image contains the packages that the boot
# script would install, the default image of trials, and no secret. images/README.md describes the build.

packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1.3"
    }
  }
}

variable "region" {
  type        = string
  description = "Where the image is made, and the pools that use it are."
}

variable "gpu" {
  type        = bool
  default     = true
  description = "Whether it is for instances with NVIDIA's GPUs; else it is smaller."
}

variable "pull" {
  type        = list(string)
  default     = []
  description = "More images of trials, of registries that ask for no login."
}

variable "subnet_id" {
  type        = string
  default     = ""
  description = "A subnet with a way to the internet; one of the default VPC if empty."
}

locals {
  kind = var.gpu ? "gpu" : "cpu"
  # AWS's image contains NVIDIA's driver and container toolkit. Pools use it by default.
  base  = var.gpu ? "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *" : "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"
  owner = var.gpu ? "amazon" : "099720109477"
}

source "amazon-ebs" "instance" {
  region                    = var.region
  subnet_id                 = var.subnet_id
  instance_type             = "m5.xlarge"
  ami_name                  = "detcloud-${local.kind}-${formatdate("YYYYMMDD-hhmm", timestamp())}"
  ami_description           = "detcloud: an instance of a resource pool"
  ssh_username              = "ubuntu"
  temporary_key_pair_type   = "ed25519"
  ssh_clear_authorized_keys = true
  encrypt_boot              = true
  imds_support              = "v2.0"

  source_ami_filter {
    owners      = [local.owner]
    most_recent = true
    filters = {
      name                = local.base
      architecture        = "x86_64"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_size           = 100
    volume_type           = "gp3"
    iops                  = 3000
    throughput            = 250
    encrypted             = true
    delete_on_termination = true
  }

  tags = {
    Name          = "detcloud-${local.kind}"
    detcloud-base = "{{ .SourceAMIName }}"
  }
}

build {
  sources = ["source.amazon-ebs.instance"]

  provisioner "file" {
    source      = "${path.root}/../boot/install.sh"
    destination = "/tmp/"
  }

  provisioner "shell" {
    script          = "${path.root}/provision.sh"
    execute_command = "sudo env KIND=${local.kind} PULL='${join(" ", var.pull)}' bash '{{ .Path }}'"
  }
}
